"""The state of every step of a dump: one record for each, one table of them, and what to do with a step.

state.py, table.py       the record with its transitions, and the only collection of records
phases.py, explain.py    the words for where a step is, and why
decide.py                what to do with a step: offer it, keep what is committed, or wait
policy.py                what the user asks for, and what the disk asks for
completeness.py          when a step is complete
committed.py,            what the store has of a step, and how the files of the dump differ from it
difference.py
other_dump.py            a committed step that came from another dump
bad_files.py             files that cannot be read, or kill the process that reads them
not_taken.py             files that are in no store, and need a decision
newest.py,               which source files stay
keep_reasons.py,
deletion.py
events.py                what a service reports
"""
