"""The state of every step of a dump: one record for each, one table of them, and what to do with a step.

state.py       the record with its transitions, the words for where a step is, and the table
watcher.py     scans of a dump and file events, which lead to decisions about its steps
decide.py      what to do with a step: offer it, keep what is committed, or wait; when it is complete; where a
               step is, and why
committed.py   what the store has of a step; how the files of the dump differ from that, and files about
               which a person has to decide
events.py      what a service reports; which source files stay, and why
"""
