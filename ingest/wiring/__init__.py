"""Puts the parts together from settings: the only place that knows all of them.

stores.py         where the store is, and what a service is to do with it
services.py       services that take a dump into a store, and their workers
consolidation.py  the consolidator
webhooks.py       posts of incidents

Each command imports what it needs: together, they take four times as long as the least.
"""
