"""Puts the parts together from settings: the only place that knows all of them.

stores.py         where the store is, and how payloads are cut
services.py       services that take a dump into a store, and their workers; explanations of steps
consolidation.py  the consolidator; sketches for steps without them

Each command imports what it needs: together, they take four times as long as the least.
"""
