"""What this machine, or a capture of one, shows of its hardware.

Belongs here: reading /sys, NVML and the output of tools into `Machine`, and describing that as documents. Does not
belong here: parsing a tool's text (the modules above), judging a machine against the inventory, deciding.
"""
