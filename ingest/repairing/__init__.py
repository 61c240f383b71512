"""repair: makes damaged or missing objects of a store again. See docs/repair.md.

result.py      what was damaged, what became of it, and where from
sources.py     bytes of payloads: from dump files, and from other rows of the store with the same digest
shards.py      a shard from the payloads that lie in it
remaking.py    a whole generation from the dump, of which index, statistics and findings are taken
tables.py      the index and the statistics of a step
commits.py     a commit from the objects of its generation
loss.py        a generation that names what is lost
step.py        one step: finds what is damaged and has it made again, in an order of which each part needs the
               one before: damaged_commit.py, step_tables.py, from_index.py, sketches.py, step_payloads.py
work.py        what these share: what may be done, and what was done so far
surroundings.py  the root, the groups of ranks, and the consolidated view
run.py         a whole store, for Python and the command line
"""

from ingest.repairing.run import repair

__all__ = ["repair"]
