"""The hands of the reconciler: what lets nodes act on a pushed generation, and what turns reports into facts.

Belongs here: the server side of the node protocol, the certificates it stands on, and the judgement of silence.
Does not belong here: what to order (planner), what proves an order (store), when to look again (runtime).
Every engine implements `ports.Engine` and passes `tests/engines/contract.py`.
"""
