"""`gangops demo`: a whole cluster on one machine, played in a few acts with nothing mocked but the GPUs.

A bare git remote, a reconciler, an agent for each node over mutual TLS, and real rank processes that meet over TCP.
"""
