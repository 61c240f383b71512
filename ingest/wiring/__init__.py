"""Puts the parts together from settings: the only place that knows all of them.

stores.py         where the store is, and how payloads are cut
options.py        what a service is to do
services.py       services that take a dump into a store, and their workers
explaining.py     where the steps of a dump are, and why
consolidation.py  the consolidator
sketching.py      sketches for steps without them
runner.py         where the tasks of these two run
webhooks.py       posts of incidents

Each command imports what it needs: together, they take four times as long as the least.
"""
