"""Tensors that ranks hold in pieces: putting them together, and finding out how they were cut.

assembly.py                 a whole tensor as an expression over pieces; how far two arrays are apart
placement.py                the ways in which pieces may make up a tensor, by their shapes; by marginals alone
placement_search.py         which of them it is, by values
"""
