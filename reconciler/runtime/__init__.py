"""What the verbs do: the loop, the preview, the replay, the demo, each a story over planner, store and engines.

Belongs here: joining the pure core to git, agents and the clock. Does not belong here: any rule of scheduling
(planner), any look of the output (render), any option of the command line (cli).
"""
