"""Tensors that ranks hold in pieces: where the ranks are in their mesh, and the whole tensor.

mesh.py, mesh_grid.py       the place of a rank in the mesh of its job; places as a grid
told_coordinates.py,        what a dump tells of places, and of how ranks hold tensors
told_placement.py
pieces.py, unsharded.py     the pieces of a tensor; the tensor that they make up
"""
