"""Clocks that do not jump."""
