"""Compiled loops over elements: the loops, and how they are compiled, shipped and loaded.

kernels.py, *_kernels.py    what others call
*_loops.py                  the loops, as numba compiles them
bitshuffle_code.py          the shuffles of Blosc, as LLVM code
kernel_entries.py,          object code of all of these: its entries, its files
kernel_objects.py
kernel_cache.py,            where compiled code is kept, and for which processor it is made
kernel_target.py,
ship_kernels.py
lazy_compile.py             compiling on first use
"""
