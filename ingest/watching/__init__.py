"""Scans of a dump: its steps, which of them are complete, and file events that make the next scan early."""
