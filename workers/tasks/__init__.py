"""What a task runs on a worker.

run.py                     the functions that are submitted, with packed arguments
isolate.py                 conversion in a subprocess, to find the file that kills its reader
convert.py                 dump files become shards; the statistics of one entry are in entry_statistics.py
publish.py                 the commit of a step, and its tables
read_back.py               source files compared with the store, before they are deleted and later
consolidate.py             one step of some ranks into the cubes; sketches for a step without them
compare.py, operands.py    comparisons; the tensors that they read
model.py                   what passes between planner and tasks, and how it is packed
metrics.py                 what tasks report
"""
