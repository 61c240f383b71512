"""The state of every step of a dump: one record for each, one table of them, and what to do with a step."""
