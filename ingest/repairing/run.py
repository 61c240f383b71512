"""`repair` for Python and the command line: a whole store, or some of its steps."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.damage import Damage
from ingest.reader.require import require_store
from ingest.repairing.remaking import DumpReading, Dumps, grids_like, name_dump
from ingest.repairing.result import RepairReport
from ingest.repairing.step import mend_step
from ingest.repairing.surroundings import damage_of_root, mend_surroundings
from ingest.repairing.work import RepairPolicy
from workers.model import StepKey
from workers.rules.load import load_rules
from workers.rules.values import RuleSet
from workers.store import commit
from workers.store.model import Grid
from workers.store.opening import open_objects, resolve


def repair(
    store: str | PathLike[str],
    dumps: Sequence[str | PathLike[str]] = (),
    *,
    rank: Choice = None,
    step: Choice = None,
    apply: bool = False,
    accept_loss: bool = False,
    grid: Grid | None = None,
    rules: RuleSet | None = None,
    host: str | None = None,
    rank_map: Mapping[int, int] | None = None,
    layout: str = "",
    progress: Callable[[StepKey], None] = lambda _: None,
    timeout_s: float | None = None,
    **storage_options: Any,
) -> RepairReport:
    """Make what is damaged in a store again, as `dump-ingest repair` does.

    Everything is read and checked, as by `verify`. A damaged payload is taken from the dump if it still has
    the file, else from an earlier generation or another step that has the same digest. Objects are written
    under their own keys if they are byte for byte what was lost, and never if they are undamaged.

    Args:
        store: a directory or any fsspec URL.
        dumps: directories of dumps, besides those that the commits name.
        rank: one rank, or several; all if None.
        step: one step, or several; all, and what lies beside the steps, if None.
        apply: whether to write. By default the report says what would be written.
        accept_loss: whether a step is committed again, as `partial`, without the payloads that are found
            nowhere.
        grid: how the store was written, if not by default: chunk, shard and job sizes.
        rules: evaluated for steps whose findings are lost; the built-in ones if None.
        host: what this host is called in commits.
        rank_map: ranks by device id, for dumps whose paths name only devices, as for `ingest`.
        layout: patterns for dumps that no layout covers, as for `ingest`.
        progress: called with each step before it is read.
        timeout_s: how long a request may go on without progress, in seconds; default: what the variable
            `DUMP_INGEST_STORE_TIMEOUT_S` says, else a minute.
        storage_options: passed to fsspec.

    Raises:
        UsageError: the store does not exist, one of the dumps is not a dump, or a rank or step is missing.
        StoreFormatError: a later version of dump-ingest wrote the store, or it is something else.
        StoreError: the store refused. What was repaired stays repaired.
    """
    reading = DumpReading(layout, rank_map)
    objects = open_objects(resolve(store, storage_options, timeout_s=timeout_s))
    catalog = Catalog(objects)
    if damage_of_root(objects) is None:
        require_store(objects, objects.address.url)
    sources = Dumps(
        objects.address,
        grids_like(grid or Grid()),
        rules or load_rules().enabled,
        host or socket.gethostname(),
        tuple(name_dump(Path(directory), reading) for directory in dumps),
        reading,
    )
    policy = RepairPolicy(apply, accept_loss)
    report = RepairReport(objects.address.url, apply)
    for key in _chosen(catalog, rank, step):
        progress(key)
        report.checked += 1
        if outcome := mend_step(catalog, key, sources, policy):
            report.repairs.append(outcome)
    if rank is None and step is None and (outcome := mend_surroundings(objects, apply=apply)):
        report.repairs.append(outcome)
    return report


def _chosen(catalog: Catalog, rank: Choice, step: Choice) -> list[StepKey]:
    if rank is None and step is None:
        return commit.list_keys(catalog.objects)
    damages: list[Damage] = []
    opened = catalog.select(rank, step, damages=damages)
    return [*(chosen.key for chosen in opened), *(damage.key for damage in damages)]
