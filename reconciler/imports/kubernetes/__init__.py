"""Kubernetes objects as Jobs: batch Job, JobSet, PyTorchJob and Volcano Job, with Kueue's queue and topology; and back.

`source` reads fields and remembers which were used, `workloads` finds the members of each kind of object, `pods` says
what a member runs, `jobs` makes the Job; `write` goes the other way.
"""
