"""What real machines and vendors' tools print, read into values of ours.

Belongs here: one pure parser a format (text in; a `Parsed` with status, warnings and errors out), and the guess which
format a text has. Does not belong here: judging what was read against the inventory, deciding, printing.
"""
