"""Files that are written from a store.

export.py                   the original files of a step, and the directory into which they are written
export_unsharded.py         whole tensors, put together from the pieces of ranks
save.py                     tensors as npy
output_file.py              a file that the user has named, complete or not there
"""
