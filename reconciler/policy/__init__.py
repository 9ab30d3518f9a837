"""What house rules say of documents and of plans, and who may change what.

Rules are CEL expressions in Policy documents; authority follows from queues, users and paths. Everything here is a pure
function of values: no file is read, no forge asked. Reading the tree, recording who wrote what and acting on a verdict
are left to `runtime`; the planner knows a policy's verdict only as a value or as an injected judge.
"""
