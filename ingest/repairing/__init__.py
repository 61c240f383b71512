"""repair: makes damaged or missing objects of a store again. See docs/repair.md.

run.py      a whole store, and one step: what is damaged is made again, in an order of which each part needs
            the one before: commit, metadata, tables, findings, sketches, payloads; payloads are made here
commits.py  a commit from the dump, or from the objects of its generation; its index, statistics, sketches and
            findings
work.py     what these share: what may be done, what was done so far, and where bytes are taken from
"""

from ingest.repairing.run import repair

__all__ = ["repair"]
