"""What would these jobs have been like on that cluster? A trace of jobs, run through the real planner in virtual time.

trace    a CSV file as rows, with what is wrong in it
setting  the cluster of a repository, and rows as its jobs
cluster  that cluster, read from a revision or a folder
agents   pretended nodes that obey at once, or so many seconds later
tally    who waited, ran and lost how much, added up over virtual time
run      the loop: what happens next, a decision, its judge, and what the nodes make of it
result   what was counted, as the values that are shown

Belongs here: virtual time and what is counted in it. Does not belong here: any choice about GPUs, which is the planner's
alone, and what a terminal or a file looks like.
"""
