"""Configurations of dump systems: what tells a job what to dump. Read, checked and written here."""
