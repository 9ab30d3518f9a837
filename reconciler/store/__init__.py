"""Git as the record: reads trees, builds signed state commits, publishes them with compare-and-swap.

Belongs here: everything that runs git or ssh-keygen, in bytes, paths and object ids. Does not belong
here: what the bytes mean (documents), what to decide (planner), when to try again (runtime).
"""
