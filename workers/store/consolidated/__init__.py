"""The consolidated view in the store: the statistics of all steps and ranks as arrays.

cubes.py, cube_state.py     which arrays there are, and how they are cut; how long they are
tensor_axis.py              the axis of tensors
blocks.py                   a step over several ranks as aligned arrays
sketch_cube.py              what the cubes hold of histograms
nd_arrays.py                chunks of N-dimensional Zarr arrays
"""
