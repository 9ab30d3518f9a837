"""What GangOps does on a forge: the preview in a pull request's check, its one comment, and the look before the merge.

Belongs here: event payloads, the comment API, workflow files. Does not belong here: deciding and rendering; and nothing
here is needed by the loop.
"""
