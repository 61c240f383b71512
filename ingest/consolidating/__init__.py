"""Keeping the cubes over all ranks and steps up to date."""
