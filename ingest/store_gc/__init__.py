"""gc: deletes steps, tensors and remains of crashes in a store. See docs/gc.md.

Deleting the source files of dumps is retention, in `ingest.dump_retention`.

policy.py        what to remove and what to keep, as a user says it
inventory.py     what the store holds: one listing, and its commits
plan.py          what goes and what stays, as a value
plan_record.py   the same as it stands in a plan file
planner.py       from inventory and policy to a plan: arithmetic, no I/O
execute.py       carries out a plan; reads each step again before touching it
run.py           both for Python
recompress.py    encodes the tensors of old steps again
"""

from ingest.store_gc.run import apply_gc, plan_gc

__all__ = ["apply_gc", "plan_gc"]
