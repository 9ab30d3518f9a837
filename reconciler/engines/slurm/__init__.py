"""Slurm as the hands: GangOps decides and commits, Slurm's own daemons start and stop.

Belongs here: reading what Slurm says (22.05 to 26.05), submitting a gang at exactly the decided nodes and GPUs, and
saying what became of it in the words of `model.observed`. Does not belong here: what to order (planner), which node
is whose (`engines.composite`), bringing a Slurm cluster's own settings over (imports).

Nothing is remembered here that matters: git says what is wanted, Slurm and the job's own receipts say what is. A job
is known by its name and comment, never by its number, because a controller that crashed gives numbers out again.
"""
