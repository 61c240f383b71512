"""The store: where things are in it, how they are encoded, how a step becomes visible.

objects.py, opening.py,    the contract of a bucket or directory; opening one; backends/ implements it
pieces.py, uploads.py
commit.py, record.py,      the commit: one PUT that makes a step visible; its record; its checksum; how memory
leaf_checksum.py,          holds it; adding to it later; what is announced before it changes; what refuses it
compact_leaf.py,
removed_meanwhile.py,
extending.py,
announcements.py
step.py, tables.py,        a committed step: its index and statistics; what the rows are called
names.py, roles.py,
problems.py, attributes.py
packed/                    packed arrays of tensors: shards, chunks, the pool that several ranks share
sketches/                  what is kept of values besides statistics
consolidated/              the cubes over all ranks and steps
findings.py, tombstones.py findings of a step; tombstones of removed steps
restore.py, recomputed.py  source files and statistics, rebuilt from the store
metadata.py,               Zarr documents and data types; strict JSON; decoding of untrusted bytes
zarr_dtypes.py,
strict_json.py, untrusted.py
model.py, events.py,       values, events of requests, look-ahead
prefetch.py
"""
