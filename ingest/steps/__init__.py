"""The state of every step of a dump: one record for each, one table of them, and what to do with a step.

state.py       the record with its transitions, the words for where a step is, and the table
decide.py      what to do with a step: offer it, keep what is committed, or wait; when it is complete
explain.py     where a step is, and why
committed.py   what the store has of a step
difference.py  how the files of the dump differ from that, and files about which a person has to decide
keeping.py     which source files stay, and why
events.py      what a service reports
"""
