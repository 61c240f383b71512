"""Numbers over arrays: no files, no store.

dtypes.py                   element types, their names in dumps, formats of numbers
device_format.py,           memory formats of accelerators; views by strides
arrangements.py
digest.py                   digests of payloads, and of their blocks
statistics.py               the statistics of a tensor, in one pass; of several tensors as one number
histogram.py, marginals.py  counts by sign and power of two; sums along axes; what follows from them
comparison.py               how far two arrays are apart
filter.py                   conditions over columns, also of values between two bounds
sharded/                    tensors that ranks hold in pieces
compiled/                   compiled loops: compiling, shipping and loading them
"""
