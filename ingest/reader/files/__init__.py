"""Files that are written from a store.

export.py                   the original files of a step
export_unsharded.py         whole tensors, put together from the pieces of ranks
save.py                     tensors as npy
target.py                   the directory into which they are written
"""
