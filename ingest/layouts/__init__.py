"""Where dump systems put their files.

A layout is one family of directory trees. It knows paths and names, and never opens a tensor file. A new one
takes a module with a subclass of `base.Layout`, an entry in `detect.LAYOUTS`, and a sample for its tests.

base.py, detect.py          the contract of layouts, and the list of them
pattern.py, fields.py       patterns of directories, and what their fields mean
tree.py, walk.py,           one walk over a dump for all layouts: directories, places of steps, their files
places.py, misnamed.py,
listings.py
sections.py                 logs that hold the lines of many steps
ranks.py                    which rank a place belongs to
proposal.py                 the pattern that an unknown tree seems to follow
*_names.py, long_names.py   names of files
msprobe_json.py,            statistics that dumps report
reports.py,
te_statistics.py,
titan_numerics.py,
debug_mode.py,
logged_statistics.py
table.py                    the tables of docs/formats.md

All other modules are layouts.
"""
