"""Deleting dumps that the store has: what may go (`policy`, `judge`), and how (`read_backs`, `removal`)."""
