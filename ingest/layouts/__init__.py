"""Where dump systems put their files.

A layout is one family of directory trees. It knows paths and names, and never opens a tensor file. A new one
takes a module with a `base.Layout`, an entry in `detect.LAYOUTS`, and a sample for its tests.

base.py, detect.py          the contract of layouts, with patterns of directories; the list of them, and
                            the pattern that an unknown tree seems to follow
tree.py, walk.py, places.py one walk over a dump for all layouts: directories, places of steps, their files;
                            logs that hold the lines of many steps

All other modules are layouts.
"""
