"""Anomaly rules: what a rule is, how a file of rules is read, and what rules find in one step of one rank.

Rules over several steps or ranks, findings in a store, and backtests of rules are in `ingest.findings`.
"""
