"""Telling people what became of their jobs: which notices a decision is worth, and how each reaches who asked for it.

Belongs here: what is told, the outbox, the webhook, the command and the pull request's comment. Does not belong here:
deciding, and everything that the loop would have to wait for.
"""
