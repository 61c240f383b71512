"""Retention of a store: which steps, tensors and remains go. See docs/gc.md.

policy.py      what is to be kept, in words of a user
inventory.py   what there is: one listing of the store, and its commits
plan.py        from both to a plan; arithmetic, no I/O
execute.py     carries a plan out, looking again at each step before it is touched
"""

from ingest.store_gc.run import apply_gc, plan_gc

__all__ = ["apply_gc", "plan_gc"]
