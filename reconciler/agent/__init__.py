"""The node's side: proves an order, launches and stops ranks, reports what is seen. Runs as root on GPU nodes.

Belongs here: everything that happens on a node. Does not: deciding anything; an agent does what a signed order of
its own node says, within the limits of its own `agent.conf`, or refuses. Standard library only, Python 3.10, no
listening port. `attempts` is the pure part (what follows from order and sight); the rest acts.
"""
