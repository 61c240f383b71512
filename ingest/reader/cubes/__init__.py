"""Reading the consolidated view: the cubes over all ranks and steps.

cube_reader.py              the cubes, read by steps, blocks of steps, objects and inner chunks; as a user has
                            them; copies of commits in them
cube_columns.py             a few tensors of many steps, or one statistic of everything
conditions.py               a search by condition; steps that need not be read for one
"""
