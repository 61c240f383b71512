"""Keeping the cubes over all steps and ranks (the consolidated view) up to date with the commits.

lease.py          the right to write the cubes, held by one process at a time
listing.py        which steps are committed, compared with what the cubes hold
announcements.py  what commits announce to the consolidator
round_plan.py     what one round writes: pure, no I/O
step_writer.py    writes the steps of a plan
commit_copier.py  copies of commits in the cubes
cube_writer.py    what steps share: axes, tables, metadata
runners.py        where tasks run: in this process or on a Dask cluster
consolidator.py   puts them together: one round, and round after round
"""
