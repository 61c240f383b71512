"""The store: where things are in it, how they are encoded, how a step becomes visible.

objects.py, opening.py,    the contract of a bucket or directory; opening one; backends/ implements it
pieces.py, uploads.py
commit.py, record.py,      the commit: one PUT that makes a step visible; its record; how memory holds it;
packed_leaf.py,            adding to it later
extending.py
step.py, tables.py,        a committed step: its index and statistics; what the rows are called
names.py, roles.py,
problems.py, attributes.py
shards.py, shard_stream.py packed arrays of tensors: shards, ranges of them, their chunks
chunk_encoder.py,
chunk_decoder.py,
sparse_chunks.py, blosc.py,
recompressing.py
pool.py, pool_packer.py    arrays that several ranks share
sketch_tables.py,          what is kept of values besides statistics
entry_table.py,
histograms.py, marginals.py,
block_digests.py,
sketch_columns.py,
step_sketches.py,
sketch_cube.py
cubes.py, blocks.py,       the cubes over all ranks and steps
nd_arrays.py
findings.py, removed.py    findings of a step; tombstones of removed steps
restore.py, recomputed.py  source files and statistics, rebuilt from the store
metadata.py, zarr_dtypes.py, Zarr documents and data types; strict JSON; decoding of untrusted bytes
strict_json.py, untrusted.py
model.py, events.py,       values, events of requests, look-ahead
prefetch.py
"""
