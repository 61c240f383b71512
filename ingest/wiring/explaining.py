"""Explanations of steps without a running watcher, from settings."""

from __future__ import annotations

from pathlib import Path

from ingest.layouts.detect import find_dump
from ingest.service.explaining import explain_dump
from ingest.settings import Settings
from ingest.steps.explain import StepRow
from ingest.wiring.options import options_of
from ingest.wiring.stores import place_of_store
from workers.store import commit
from workers.store.opening import open_objects


def explain_steps(dump: str | Path, settings: Settings) -> list[StepRow]:
    """Explain where each step of a dump is and why; what `dump-ingest watch --explain` prints.

    Scans the dump and asks the store once, and writes nothing; needs no cluster.

    Raises:
        UsageError: the directory is not a dump, or the store would lie in it.
        StoreError: the store cannot be used.
    """
    tree = find_dump(Path(dump), rank_map=settings.rank_map, layout=settings.layout, with_checkpoints=False)
    objects = open_objects(place_of_store(settings, tree))
    commit.read_root(objects)
    return explain_dump(tree, objects, options_of(settings, retry_forever=True))
