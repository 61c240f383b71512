"""What a task runs on a worker.

run.py                     the functions that are submitted, with packed arguments
convert.py                 dump files become shards; the statistics of one entry are in entry_statistics.py
isolate.py                 the same in a subprocess, to find the file that kills its reader
publish.py                 the commit of a step, and its tables
sketch.py                  sketches for a step that was committed without
read_back.py               source files compared with the store, before they are deleted and later
consolidate.py             one step of some ranks into the cubes
compare.py, operands.py    comparisons; the tensors that they read
model.py, columns.py,      what passes between planner and tasks, and how it is packed
envelopes.py
metrics.py                 what tasks report
"""
