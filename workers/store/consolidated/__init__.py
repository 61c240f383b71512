"""The consolidated view in the store: the statistics of all steps and ranks as arrays.

cubes.py          which arrays there are, how they are cut, and how long they are
blocks.py         a step over several ranks as aligned arrays; the axis of tensors
nd_arrays.py      chunks of N-dimensional Zarr arrays
"""
