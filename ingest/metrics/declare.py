"""Declaring metrics in one line each, with a common beginning of their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class Declare:
    """Creates metrics on a registry."""

    registry: CollectorRegistry
    prefix: str
    """Stands before the name of each metric."""

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Return a new gauge."""
        return Gauge(f"{self.prefix}{name}", text, labels, registry=self.registry)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Return a new counter."""
        return Counter(f"{self.prefix}{name}", text, labels, registry=self.registry)

    def counter_by(self, label: str, values: Iterable[str], name: str, text: str) -> Counter:
        """Return a new counter with a label, all of whose series exist from the first scrape."""
        counter = self.counter(name, text, label)
        for value in values:
            counter.labels(value)
        return counter

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        """Return a new histogram."""
        return Histogram(f"{self.prefix}{name}", text, buckets=buckets, registry=self.registry)
