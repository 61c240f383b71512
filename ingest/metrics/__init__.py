"""What the services tell Prometheus, as observers of events.

observers.py  a watcher: a table of counters, the ranks, the disk of the dump; the consolidator, and how gc
              ended; what rules found, for both
server.py     declaring metrics, labels of ranks, and what tells processes and runs apart; serves all that

To add a counter, add a row to the table of `observers.py`, and say there which event adds to it.
"""

from ingest.metrics.observers import ConsolidatorMetrics, WatcherMetrics
from ingest.metrics.server import Scrapes, serve

__all__ = ["ConsolidatorMetrics", "Scrapes", "WatcherMetrics", "serve"]
