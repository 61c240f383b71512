"""Where dump systems put their files: one module per family.

A layout knows paths and names. It never opens a tensor file.
"""
