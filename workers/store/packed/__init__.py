"""Packed arrays: the tensors of a step, one after the other, in sharded one-dimensional Zarr arrays.

shards.py             whole shards, and ranges of them; chunks.py: their chunks
recompressing.py      encoding a committed step again, for steps rarely read
pool.py, pool_packer.py    arrays that several ranks of a step share
"""
