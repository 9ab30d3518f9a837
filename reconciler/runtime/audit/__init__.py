"""The record as evidence: who held what, how much was used, and whether all of it can be proven.

walk      is in `store`; here only what the walked files mean
glance    the few facts of a job's record that questions are asked of, without loading it
index     those facts of every generation, in one file beside the clone
origins   who asked for a job, and through which pull request
history   one job, walked along its path
answers   by job, node, GPU, queue, person, pull request and time, from the index
scenes    what the cluster was over the record
usage     GPU-hours, adding up exactly to capacity times time
signers   who may sign a generation: the list in its parent's desired state
verify    whether the whole record is true: `ends` of the chain, `parts` judged side by side by `judge`, then the `whole`
exceptions what a person should look at
export    decisions as in-toto statements

Belongs here: reading what was committed. Does not belong here: anything that asks an agent, a clock or a network.
"""
