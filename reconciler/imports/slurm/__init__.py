"""What a running Slurm says of its own rules, as documents of ours. Pure: captured text in, documents and notes out.

Belongs here: accounts, QOS, shares and use. Does not belong here: nodes and jobs (`engines.slurm` reads those),
cabling (`imports.topology`), files and commands (`runtime.slurm`).
"""
