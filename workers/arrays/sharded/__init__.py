"""Tensors that ranks hold in pieces: putting them together, and finding out how they were cut.

assembly.py                 a whole tensor as an expression over pieces
placement.py                the ways in which pieces may make up a tensor, by their shapes
placement_search.py,        which of them it is, by values; by marginals alone
marginal_placement.py
segment_match.py            where parts of a tensor are in another one
agreement.py                how far two arrays are apart, added up over ranges; whether one is a part
"""
