"""Sketches: what is kept of the values of a tensor besides its statistics, and what follows from it.

histogram.py,               counts by sign and power of two: of one tensor, of one that arrives in blocks, of
running_histogram.py,       thousands
histogram_table.py
marginals.py                sum, norm and largest magnitude of each position along an axis
block_digests.py            digests of the blocks of a payload
rounding.py                 what a cast to another format would lose
channels.py                 positions that stand out, are dead, or are saturated
"""
