"""Where GPUs are, which are free, what fits where, and what a placement costs to talk across.

tree           levels, domains and nodes as small integers; node shapes
capacity       the bit-set engine: free GPUs, trial and undo; `counts` what is free by domain, `units` smaller workers
request        a gang of equal workers as asked, and a placement as answered
find           the placement rule for one such gang; `rooms` which domains have room, `gpus` which GPUs of a node
roles          gangs of unlike members
shortage       why a gang does not fit, in numbers
cost           T_comm of a placement and its lower bound
fragmentation  Phi, stranded GPUs, idle share

Belongs here: arithmetic on small integers, exact and deterministic. Does not belong here: jobs, queues,
priorities, victims and reasons (planner), names of things in documents (model), any input or output.
"""
