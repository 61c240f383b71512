"""Compiled loops over elements: the loops, and how they are compiled, shipped and loaded.

kernels.py                  what others call
*_loops.py                  the loops, as numba compiles them
bitshuffle_code.py          the shuffles of Blosc, as LLVM code
kernel_entries.py,          object code of all of these: its entries, its files
kernel_objects.py
kernel_target.py,           for which processor it is made
ship_kernels.py
"""
