"""Conditions over columns, as `find --where` has them. They live with the workers, which evaluate rules."""

from workers.arrays.filter import Where

__all__ = ["Where"]
