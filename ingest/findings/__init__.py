"""Findings: rules over several steps and ranks, what is stored of all rules, listing it, and backtests.

What a rule is, files of rules, and rules over one step of one rank are in `workers.rules`.

evaluator.py, series.py     evaluates rules next to a consolidator
series_kinds.py,            the kinds of rules: a tensor against its earlier steps; ranks against each other
replicas.py
history.py, conditions.py   what these need of earlier steps; their `where`
stored.py, anomalies.py     findings in a store, and the list of them
backtest.py,                how often rules would have fired; what a tensor must fulfil so that one may fire
necessary_conditions.py
waiting.py, should_stop.py, waiting for an incident; whether a job should stop; whether the evidence is safe
evidence.py
incidents/                  what went wrong, once for each cause
"""
