"""Keeping the cubes over all steps and ranks (the consolidated view) up to date with the commits.

consolidator.py  one round, and round after round
lease.py         the right to write the cubes, held by one process at a time
listing.py       which steps are committed, compared with what the cubes hold
round_plan.py    what one round writes: pure, no I/O
cube_writer.py   writes it: steps by tasks, what they share, copies of commits, cuts along the tensors
"""
