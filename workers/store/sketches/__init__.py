"""Sketches in the store: what a step keeps of the values of its tensors besides their statistics.

sketch_tables.py            which arrays a generation has for them
entry_table.py              tables with none, one or many entries for each row of the index
histograms.py, marginals.py,
block_digests.py
sketch_names.py,            the columns that conditions ask for: their names, their values, those of a step
sketch_columns.py,
step_sketches.py
"""
