"""Findings: rules over several steps and ranks, what is stored of all rules, listing it, and backtests.

What a rule is, files of rules, and rules over one step of one rank are in `workers.rules`.

evaluator.py, series.py     evaluates rules next to a consolidator
series_kinds.py, replicas.py, the kinds of rules: a tensor against earlier steps; ranks against each other;
training.py                 what a step of training does
history.py                  what these need of earlier steps
stored.py, anomalies.py     findings in a store, and the list of them
backtest.py                 how often rules would have fired
waiting.py, should_stop.py, waiting for an incident; whether a job should stop; whether the evidence is safe
evidence.py
incidents/                  what went wrong, once for each cause
"""
