"""Aligns two programs that ran different operators: as sequences with gaps, and as graphs."""
