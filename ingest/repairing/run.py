"""`repair`: a whole store, or some of its steps.

What is byte for byte as it was is written under its own key. The commit of a step goes last, in one PUT.
Nothing that is undamaged is written again. Steps come first: the consolidated view is made again from them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from ingest.consolidating.consolidator import Consolidator
from ingest.consolidating.lease import LeaseHeld
from ingest.layouts.detect import find_dump
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from ingest.reader.require import require_store
from ingest.reader.verifying import (
    StoreDamage,
    Verified,
    verify,
    verify_copies,
    verify_step,
    verify_surroundings,
)
from ingest.repairing.commits import commit_of, write_commit
from ingest.repairing.payloads import mend_payloads
from ingest.repairing.tables import (
    mend_findings,
    mend_nodes,
    mend_sketches,
    mend_totals,
    tables_of,
)
from ingest.repairing.work import (
    Dumps,
    Lost,
    Mended,
    RepairReport,
    StepRepair,
    StepWork,
    Unmendable,
    grids_like,
)
from workers.errors import DamagedStore, SourceChanged, StepRemoved, TensorsRemoved
from workers.model import StepKey
from workers.rules.load import load_rules
from workers.rules.values import RuleSet
from workers.store import commit
from workers.store.consolidated.cubes import GROUP
from workers.store.model import Grid
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve


def mend_step(
    catalog: Catalog, key: StepKey, dumps: Dumps, *, apply: bool, accept_loss: bool
) -> StepRepair | None:
    """Repair one step; return what became of it, or None if it is undamaged or gone.

    Memory: the index of the step and of one other, one shard, and a few pieces of 16 MiB. Tables that are
    made from the dump take a conversion of the whole step, which writes nothing.

    Raises:
        StoreError: the store refused. What was repaired stays repaired.
    """
    damages = list(verify(catalog, [key]))
    if not damages:
        return None
    work = StepWork(catalog, key, dumps, StepRepair(key, tuple(map(str, damages))), apply, accept_loss)
    try:
        _mend(work)
    except Unmendable as exc:
        work.repair.lost.append(exc.lost)
    except SourceChanged as exc:
        work.repair.lost.append(Lost(str(key), f"{exc.message}; run it again"))
    except (StepRemoved, TensorsRemoved):
        return None
    except DamagedStore as exc:  # other steps must not wait for what is wrong with this one
        work.repair.lost.append(Lost(key.path, exc.message))
    if apply:
        work.repair.remains = tuple(map(str, verify(catalog.reopened(), [key])))
    return work.repair


def _mend(work: StepWork) -> None:
    """Repair a step that is damaged.

    Raises:
        Unmendable: something could not be made again that the rest needs.
        StoreError: the store refused.
    """
    leaf = work.objects.get(work.leaf_path)
    if leaf is None:
        return
    committed = commit_of(work, leaf)
    mend_nodes(work, committed)
    step = tables_of(work, committed)
    if step is None:
        return  # a new generation was committed from the dump
    step = mend_findings(work, step)
    step = mend_totals(work, step)
    damages = list(verify_step(step, Verified()))
    step = mend_sketches(work, step, damages)
    mend_payloads(work, step, damages)
    write_commit(work, leaf, step.commit)


def damage_of_root(objects: ObjectStore) -> StoreDamage | None:
    """Return what is wrong with the root of a store; None if nothing is.

    Raises:
        StoreFormatError: it is the root of something else, or of a later version.
    """
    try:
        version = commit.read_root(objects)
    except DamagedStore as exc:
        return StoreDamage(commit.ROOT, exc.message)
    if version is None and commit.holds_commits(objects):
        return StoreDamage(commit.ROOT, f"{commit.ROOT} is missing")
    return None


def mend_surroundings(objects: ObjectStore, *, apply: bool) -> StepRepair | None:
    """Repair root, groups of ranks and view; return what became of them, or None if nothing is damaged.

    The view is made again from the steps, so these are to be repaired first.

    Raises:
        StoreFormatError: the place holds something else.
        StoreError: the store refused.
    """
    root = damage_of_root(objects)
    damages = [*([root] if root else []), *verify_surroundings(objects), *verify_copies(objects)]
    if not damages:
        return None
    repair = StepRepair(None, tuple(map(str, damages)))
    for damage in damages:
        if damage.path == GROUP:
            continue
        rank = damage.path.partition("/")[0].removeprefix("rank_")
        is_root = damage.path == commit.ROOT
        if apply:
            document = commit.root_document() if is_root else commit.rank_document(int(rank))
            objects.put(damage.path, document)
        repair.mended.append(Mended(damage.path, "its place in the store"))
    if any(damage.path == GROUP for damage in damages):
        # From the commits; if only copies of commits are damaged, only those.
        try:
            if apply:
                with Consolidator(objects) as consolidator:
                    consolidator.once(check=True)
            repair.mended.append(Mended(GROUP, "the steps"))
        except LeaseHeld as exc:
            repair.lost.append(Lost(GROUP, exc.message))
    if apply:
        repair.remains = tuple(map(str, [*verify_surroundings(objects), *verify_copies(objects)]))
    return repair


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
    find = partial(find_dump, rank_map=rank_map, layout=layout)
    objects = open_objects(resolve(store, storage_options, timeout_s=timeout_s))
    catalog = Catalog(objects)
    if damage_of_root(objects) is None:
        require_store(objects, objects.address.url)
    sources = Dumps(
        objects.address,
        grids_like(grid or Grid()),
        rules or load_rules().enabled,
        host or socket.gethostname(),
        tuple(find(Path(directory)) for directory in dumps),
        find,
    )
    report = RepairReport(objects.address.url, apply)
    if rank is None and step is None:
        keys = commit.list_keys(objects)
    else:
        unread: list[Damage] = []
        chosen = catalog.select(rank, step, damages=unread)
        keys = [*(one.key for one in chosen), *(damage.key for damage in unread)]
    for key in keys:
        progress(key)
        report.checked += 1
        outcome = mend_step(catalog, key, sources, apply=apply, accept_loss=accept_loss)
        report.repairs += [outcome] if outcome else []
    if rank is None and step is None and (outcome := mend_surroundings(objects, apply=apply)):
        report.repairs.append(outcome)
    return report
