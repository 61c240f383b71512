"""Comparing two stores, runs, ranks, steps or dumps tensor by tensor: `run.py` has the question."""
