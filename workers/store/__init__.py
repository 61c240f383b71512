"""The store: where things are in it, how they are encoded, how a step becomes visible.

objects.py, opening.py     the contract of a bucket or directory; opening one; backends/ implements it
commit.py, record.py       the commit: one PUT that makes a step visible; announcements of changes; tombstones
step.py, tables.py,        a committed step: its index and statistics; how tables are encoded; what tensors
roles.py                   are in training
packed/                    packed arrays of tensors: shards, chunks, the pool that several ranks share
sketches.py,               what is kept of values besides statistics; what conditions may ask of it
sketch_columns.py, sketch_names.py
consolidated/              the cubes over all ranks and steps
findings.py                findings of a step
metadata.py, strict_json.py, zarr_dtypes.py, untrusted.py
                           Zarr documents and data types; strict JSON; decoding of untrusted bytes
model.py, prefetch.py      values; look-ahead
"""
