"""Which process of which run this is: its clock, its store, and how many ranks its run is to have."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from ingest.metrics.declare import Declare
from ingest.watching.watcher import DumpState
from workers.events import Event
from workers.host.credentials import masked
from workers.tasks.metrics import register_build_info


class ProcessMetrics:
    """Clock, store, expected ranks, kind of end and version of a process. Five series."""

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        store: str = "",
        expected_ranks: int | None = None,
        *,
        finishes: bool = False,
    ) -> None:
        """Register everything.

        Args:
            registry: where.
            clock: returns Unix time.
            store: the URL of the store; credentials in it are masked.
            expected_ranks: how many ranks the run is to have; 0 for any number, None if a rank table in the
                dump is to tell.
            finishes: whether the process takes everything before it ends, and has that scraped.
        """
        self._is_given = expected_ranks is not None
        declare = Declare(registry, "dump_ingest_")
        declare.gauge(
            "time_seconds", "Unix time by the clock of this host; its distance from the scrape is its error."
        ).set_function(clock)
        declare.gauge("store_info", "1, with the URL of the store.", "store").labels(store=masked(store)).set(
            1
        )
        self._expected = declare.gauge(
            "expected_ranks", "Ranks that the run is to have, by its settings or rank tables; 0: not known."
        )
        self._expected.set(expected_ranks or 0)
        declare.gauge(
            "finishes", "1 if the process takes everything before it ends, and has that scraped."
        ).set(finishes)
        register_build_info(registry)

    def observe(self, event: Event) -> None:
        """Show how many ranks the rank tables of the dump name, unless the settings say it."""
        if isinstance(event, DumpState) and not self._is_given and event.expected_ranks is not None:
            self._expected.set(event.expected_ranks)
