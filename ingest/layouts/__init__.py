"""Where dump systems put their files.

A layout is one family of directory trees. It knows paths and names, and never opens a tensor file. A new one
takes a module with a subclass of `base.Layout`, an entry in `detect.LAYOUTS`, and a sample for its tests.
"""
