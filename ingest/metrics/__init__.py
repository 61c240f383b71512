"""What the services tell Prometheus: groups of metrics, each of which observes the events that change it.

To add a metric, declare it in the group to which it belongs and set it in the `observe` of that group. A new
group is added to `WatcherMetrics` or `ConsolidatorMetrics`.
"""

from ingest.metrics.consolidator import ConsolidatorMetrics
from ingest.metrics.scrapes import Scrapes
from ingest.metrics.server import serve
from ingest.metrics.watcher import WatcherMetrics

__all__ = ["ConsolidatorMetrics", "Scrapes", "WatcherMetrics", "serve"]
