"""Findings: rules over several steps and ranks, what is stored of all rules, listing it, and backtests.

What a rule is, files of rules, and rules over one step of one rank are in `workers.rules`.

series.py                   evaluates rules over several steps and ranks; the kinds over ranks
series_kinds.py             the kinds of rules over steps: a rank against its earlier steps
history.py                  what these need of earlier steps
stored.py                   findings in a store, and the list of them
backtest.py                 how often rules would have fired
waiting.py, should_stop.py, waiting for an incident; whether a job should stop; whether the evidence is safe
evidence.py
incidents.py                what went wrong, once for each cause
severities.py               how bad it is, and answers that count it
tables.py, viewers.py       all of it as Parquet files; for the viewers of others
"""
