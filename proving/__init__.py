"""The proving ground: real programs with known faults, and what the tool answers about their dumps.

case.py        what is run, what is asked of it, what is true of it
job.py         what a program is given: its options, its fault, the line that dumps
programs/      one module for each family of programs, written as their users write them
loop.py        the training loop that most of them share, and the faults of training loops
edits.py       faults that are an edit of the model
single.py      cases of programs in one process, and of data parallelism over the same
parallel.py    cases of programs that are cut over ranks
runner.py      runs the ranks of a program, ingests what they dumped, asks
answers.py     turns the answer to each question into plain statements
score.py       holds statements against the truth
report.py      the tables, as text, JSON and HTML
"""
