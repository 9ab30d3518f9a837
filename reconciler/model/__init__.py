"""The values everything else speaks in: frozen, integers only, no behaviour beyond their own arithmetic.

Belongs here: what a job, a queue, a node, an observation and an allocation *are*, and the lifecycle table.
Does not belong here: reading them from YAML (documents), deciding about them (planner), showing them (render).
"""
