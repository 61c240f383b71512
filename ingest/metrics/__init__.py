"""What the services tell Prometheus: sets of metrics that subscribe to what happens."""

from ingest.metrics.consolidator import ConsolidatorMetrics
from ingest.metrics.server import serve
from ingest.metrics.watcher import WatcherMetrics

__all__ = ["ConsolidatorMetrics", "WatcherMetrics", "serve"]
