"""What a task runs on a worker.

run.py                     the functions that are submitted, with packed arguments
convert.py                 dump files become shards; its parts are in payload_buffer.py, entry_statistics.py
isolate.py                 the same in a subprocess, to find the file that kills its reader
publish.py                 the commit of a step; its tables are made in index.py, headers.py,
                           reported_vs_computed.py
sketch.py                  sketches for a step that was committed without
read_back.py, recheck.py   source files compared with the store, before they are deleted and later
consolidate.py             one step of some ranks into the cubes; what follows from histograms in
                           consolidate_sketches.py
compare.py, placed.py,     comparisons; operands.py and piece_elements.py read the tensors
contents.py
model.py, columns.py,      what passes between planner and tasks, and how it is packed
envelopes.py
events.py, metrics.py      what tasks report
"""
