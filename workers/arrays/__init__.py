"""Numbers over arrays: no files, no store.

dtypes.py, dtype_names.py,  element types, their names in dumps, formats of numbers
number_formats.py
device_format.py,           memory formats of accelerators
device_formulas.py,
arrangements.py, strided.py
digest.py, block_digests.py digests of payloads and of their blocks
statistics.py               the statistics of a tensor, in one pass
histogram.py,               sketches: histograms by power of two, sums along axes, and what follows from them
histogram_table.py,
running_histogram.py,
marginals.py, rounding.py,
channels.py
comparison.py, agreement.py how far two arrays are apart
assembly.py, placement.py,  tensors that ranks hold in pieces: putting them together, and finding out how
placement_search.py,
marginal_placement.py,
segment_match.py,
part_search.py
filter.py, aggregate.py     conditions over columns; several tensors as one number
kernels.py, *_kernels.py    compiled loops; the loops are in `*_loops.py`
lazy_compile.py,            compiling, shipping and loading them
kernel_cache.py,
kernel_entries.py,
kernel_objects.py,
kernel_target.py,
ship_kernels.py,
bitshuffle_code.py
"""
