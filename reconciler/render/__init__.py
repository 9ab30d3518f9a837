"""How things look: plans, records and reasons as text, Markdown or JSON. Values in, text out.

Belongs here: layout, alignment, escaping, units for people. Does not belong here: reading git, deciding, options.
"""
