"""What shall run where, and why: the pure decision and its independent judge.

decide         the story of one decision, in numbered steps; `draft` is the allocation while it is being made
access         which nodes are open to a job, whatever is free there
charges        what a gang counts for at engines, queues and nodes; `masks`: which GPUs it means, `listening`: its ports
steps, sight   what observation alone makes of a job: the lifecycle table, row by row
classify       what its file makes of it: an ordered table of buckets, first match; `candidacy`: may it ask for GPUs?
ground         the inventory as numbers; `capacity`: what of it is healthy and open, with a reason for all that is not
quota, order   who may have how much, and who comes first
placement      a job as requests to the search, nodes it must not use; `ranks` gives every rank its GPU
admit          one job, the first way that starts it: free GPUs, GPUs being released, victims
preemption     victims, minimal and never in vain (`victims`: lower bounds); `promise` keeps their GPUs for the preemptor
repair         broken gangs, before any new work
explain        the reason of every job that waits, with its numbers
metrics        the cluster's numbers after a decision; `changes`: what differs and deserves a commit
memo           what was worked out from a value that is still the same object
verify         the independent judge, sharing no search code

Belongs here: values in, values out. Does not belong here: clocks, files, sockets, random numbers, logs.
"""
