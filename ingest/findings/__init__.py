"""Findings: rules over several steps and ranks, what is stored of all rules, listing it, and backtests.

What a rule is, files of rules, and rules over one step of one rank are in `workers.rules`.
"""
