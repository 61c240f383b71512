"""Deleting dumps that are in the store: which (`policy`), whether (`read_backs`), how (`removal`)."""
