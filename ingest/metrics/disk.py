"""How full the disk of a dump is."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from ingest.disk.pressure import DiskSeen
from ingest.metrics.declare import Declare
from workers.events import Event

_TEXTS = {
    "disk_free_bytes": "Bytes that may still be written to the file system of the dump.",
    "disk_size_bytes": "Bytes of the file system of the dump.",
    "disk_free_inodes": "Files that may still be created in the file system of the dump.",
    "disk_inodes": "Files that the file system of the dump can hold; 0 for no limit.",
}


class DiskMetrics:
    """Space and pressure. Five series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register what is known from the start."""
        self._declare = Declare(registry, "dump_ingest_watcher_")
        self._pressure = self._declare.gauge(
            "under_pressure",
            "1 while less of the disk of the dump is free than `pressure_free`.",
            "policy",
        )
        self._gauges: dict[str, Gauge] = {}

    def observe(self, event: Event) -> None:
        """Show a look at the disk."""
        if not isinstance(event, DiskSeen):
            return
        self._pressure.labels(policy=event.policy).set(event.under_pressure)
        # Not before there is a value: an alert would take 0 for a full disk.
        if not self._gauges:
            self._gauges = {name: self._declare.gauge(name, text) for name, text in _TEXTS.items()}
        space = event.space
        values = (space.free_nbytes, space.nbytes, space.free_inodes, space.inodes)
        for gauge, value in zip(self._gauges.values(), values, strict=True):
            gauge.set(value)
