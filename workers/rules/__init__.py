"""Anomaly rules as a worker has them: frozen values, and their evaluation over the tables of one step."""
