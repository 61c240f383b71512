"""Numbers over arrays: no files, no store.

dtypes.py,                  element types, their names in dumps, formats of numbers
number_formats.py
device_format.py,           memory formats of accelerators
arrangements.py, strided.py
digest.py                   digests of payloads
statistics.py               the statistics of a tensor, in one pass
comparison.py               how far two arrays are apart
filter.py, bounds.py        conditions over columns, also of values between two bounds
aggregate.py                several tensors as one number
sketches/                   histograms, sums along axes, digests of blocks, and what follows from them
sharded/                    tensors that ranks hold in pieces
compiled/                   compiled loops: compiling, shipping and loading them
"""
