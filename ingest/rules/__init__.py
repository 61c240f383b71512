"""Anomaly rules: read from YAML, evaluated over steps and ranks, stored, listed, sent."""
