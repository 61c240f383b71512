"""Packed arrays: the tensors of a step, one after the other, in sharded one-dimensional Zarr arrays.

shards.py, shard_stream.py  whole shards; ranges of them, read in order
chunk_encoder.py,           the chunks of a shard
chunk_decoder.py,
sparse_chunks.py, blosc.py
recompressing.py            encoding a committed step again, for steps rarely read
pool.py, pool_packer.py     arrays that several ranks of a step share
"""
