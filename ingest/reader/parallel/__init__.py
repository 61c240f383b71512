"""Tensors that ranks hold in pieces: where the ranks are in their mesh, and the whole tensor.

mesh.py                     the place of a rank in the mesh of its job, as a user or the dump tells it
told_placement.py           what a dump tells of how ranks hold a tensor; the grid of these ranks
unsharded.py                the tensor that the pieces of ranks make up
"""
