"""gc: deletes steps, tensors and remains of crashes in a store. See docs/gc.md.

Deleting the source files of dumps is retention, in `ingest.dump_retention`.

plan.py      what to remove and to keep, as a user says it; what the store holds, by one listing and its
             commits; from both to a plan, as a value and a file
execute.py   carries out a plan, and reads each step again before touching it; encodes the tensors of old
             steps again; how gc ended last
ring.py      the steps that a black box keeps
"""

from ingest.store_gc.execute import apply_gc, plan_gc

__all__ = ["apply_gc", "plan_gc"]
