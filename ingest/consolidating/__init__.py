"""Keeping the cubes over all steps and ranks (the consolidated view) up to date with the commits.

consolidator.py  one round, and round after round; which steps are committed, compared with the cubes
lease.py         the right to write the cubes, held by one process at a time
cube_writer.py   what one round writes, and its writing: steps by tasks, what they share, copies of commits,
                 cuts along the tensors
"""
