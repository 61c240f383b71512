"""Puts the service together from settings: the only place that knows all of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingest.cli.common import err
from ingest.cluster import Cluster
from ingest.committed import Committed
from ingest.completeness import Policy
from ingest.layouts.base import Dump
from ingest.service import Service
from ingest.settings import Loaded, Settings, load
from ingest.submit import Limits, Submitter
from ingest.watch import Watcher
from workers.errors import UsageError
from workers.model import Grid
from workers.store import commit
from workers.store.objects import open_objects, resolve


def load_settings(config: Path | None, **flags: Any) -> Loaded:
    """Load settings for a command that writes, and warn of variables that set nothing.

    Raises:
        UsageError: they are wrong, or name no store.
    """
    loaded = load(config, **flags)
    for name in loaded.unknown_variables:
        err.print(f"[yellow]warning:[/] {name} is no setting; see `dump-ingest config schema`")
    if loaded.settings.store is None:
        raise UsageError(
            "no store", hint="Name it with --store, DUMP_INGEST_STORE, or `store` in the settings file."
        )
    return loaded


def grid_of(settings: Settings) -> Grid:
    """Return how payloads are cut."""
    return Grid(int(settings.chunk_size), int(settings.shard_size), int(settings.job_size))


@contextmanager
def open_service(dump: Dump, settings: Settings, *, patient: bool = False) -> Iterator[Service]:
    """Wire the service for a dump; its cluster, started when first needed, ends with it.

    Raises:
        UsageError: the store would lie in the dump.
        StoreError: the store cannot be used.
    """
    store = resolve(settings.store or "", settings.store_options)
    if Path(store.url).is_relative_to(dump.root):
        raise UsageError(
            f"the store {store.url} would lie in the dump {dump.root}",
            hint="Name a directory elsewhere: the store would be taken for a part of the dump.",
        )
    objects = open_objects(store)
    commit.read_root(objects)  # a wrong URL or wrong credentials show now, not after the first conversion
    with Cluster(settings) as cluster:
        yield Service(
            watcher=Watcher(
                dump, Policy(settings.quiet_s, settings.settle_s), grid_of(settings), settings.order
            ),
            submitter=Submitter(cluster.connect, Limits(int(settings.inflight_size))),
            committed=Committed(objects),
            store=store,
            poll_s=settings.poll_s,
            patient=patient,
        )
