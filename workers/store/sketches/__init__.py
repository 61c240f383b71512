"""Sketches: what is kept of the values of tensors besides statistics.

sketch_tables.py                       the arrays of a generation; what rules and conditions need of them
histograms.py, block_digests.py        entries for the rows of the index, in the format of entry_table.py
marginals.py                           sums along the axes of tensors
sketch_columns.py, sketch_names.py     what conditions may ask of them
"""
