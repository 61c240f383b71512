"""Reading the consolidated view: the cubes over all ranks and steps.

consolidated.py             the cubes as users have them
cube_reader.py,             reading cubes; arrays by parts; columns of cubes; where inner chunks are
array_parts.py,
cube_columns.py,
shard_indexes.py
cube_find.py,               conditions, sketches, a statistic of several tensors together
cube_sketches.py,
rank_statistics.py
clean_steps.py,             steps that need not be read: those without NaN and Inf, those without a match
possible_steps.py
commit_copies.py            commits, from their copies
"""
