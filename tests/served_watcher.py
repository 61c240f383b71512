"""A watcher in this process that serves its metrics and steps, and works when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from ingest.disk import DiskSpace, Pressure
from ingest.metrics import WatcherMetrics, serve
from ingest.service.live_watcher import PATH
from ingest.service.one_shot import LiveSteps
from ingest.service.service import Service
from tests.servers.process import free_port
from tests.services import make_service


@contextmanager
def served_watcher(dump: Path, store: Path, **options: Any) -> Iterator[tuple[str, Service]]:
    """Yield where it serves, and its service: each `tick` of it is a look and some work.

    `options` are those of `make_service`.
    """
    registry = CollectorRegistry()
    metrics = WatcherMetrics(registry, store=str(store))
    live, port = LiveSteps(), free_port()
    service = make_service(dump, store, observers=[metrics.observe], **options)
    live.attach(service)
    metrics.observe(Pressure().judge(DiskSpace(100, 1000, 5, 10)))
    stop = serve(registry, f"127.0.0.1:{port}", {PATH: live.page}, trigger=live.trigger)
    try:
        yield f"http://127.0.0.1:{port}", service
    finally:
        stop()
