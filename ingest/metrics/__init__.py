"""What the services tell Prometheus, as observers of events.

watcher.py       a watcher: a table of counters, the ranks, the disk of the dump
consolidator.py  the consolidator, and how gc ended
findings.py      what rules found, for both
common.py        declaring metrics, labels of ranks, and what tells processes and runs apart
server.py        serves all that; when it was scraped

To add a counter, add a row to the table of `watcher.py`, and say there which event adds to it.
"""

from ingest.metrics.consolidator import ConsolidatorMetrics
from ingest.metrics.server import Scrapes, serve
from ingest.metrics.watcher import WatcherMetrics

__all__ = ["ConsolidatorMetrics", "Scrapes", "WatcherMetrics", "serve"]
