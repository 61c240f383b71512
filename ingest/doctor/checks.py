"""The checks of `dump-ingest doctor`: each answers one question, and says what to do if it fails."""

from __future__ import annotations

import os
import platform
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingest.disk.pressure import parse_threshold
from ingest.disk.space import space_at
from ingest.dispatch.cluster import Cluster, address_of
from ingest.doctor.access import Identity, first_barrier
from ingest.layouts.base import Dump, DumpScan
from ingest.layouts.detect import find_dump
from ingest.service.belonging import Belonging
from ingest.settings import LoadedSettings, Settings
from ingest.wiring import grid_of, place_of_store
from workers import __version__
from workers.errors import AccessDenied, DumpIngestError, StoreError
from workers.store import commit
from workers.store.opening import open_objects

#: Steps of which one file is tried.
_TRIED = 8
#: How many directories are named.
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question."""

    check: str
    """The name of the check."""
    ok: bool
    detail: str
    hint: str = ""


#: The store, if the dump cannot be read.
_NOT_CHECKED = Check(
    "store",
    ok=False,
    detail="not checked: without the dump, nobody can tell whether the store would lie in it",
    hint="Mend the dump first, or check the store alone: dump-ingest doctor --store URL",
)


def run_checks(loaded: LoadedSettings, dump: Path | None) -> list[Check]:
    """Check software and settings; and dump, store and scheduler, if they are named."""
    software = f"dump-ingest {__version__}, Python {platform.python_version()}, {platform.machine()}"
    results = [
        Check("software", ok=True, detail=software),
        Check("identity", ok=True, detail=str(Identity.of_this_process())),
        _settings(loaded),
    ]
    usable: Path | None = None
    if dump is not None:
        results.append(_guarded("dump", lambda: _dump(dump)))
        if results[-1].ok:
            usable = dump
            results += _left_out(dump)
        results += _disk(loaded.settings, dump)
    if loaded.settings.store is not None:
        if usable == dump:
            results.append(_guarded("store", lambda: _store(loaded.settings, dump)))
        else:
            results.append(_NOT_CHECKED)
        if usable is not None and results[-1].ok and not loaded.settings.replace:
            results.append(_guarded("dump in store", lambda: _belongs(loaded.settings, usable)))
    if loaded.settings.scheduler is not None:
        results.append(_guarded("scheduler", lambda: _scheduler(loaded.settings)))
    return results


def _guarded(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, ok=True, detail=check())
    except DumpIngestError as exc:
        return Check(name, ok=False, detail=exc.message, hint=exc.hint)


def _settings(loaded: LoadedSettings) -> Check:
    if loaded.unknown_variables:
        names = ", ".join(loaded.unknown_variables)
        return Check(
            "settings",
            ok=False,
            detail=f"environment variables that are not settings: {names}",
            hint="Check the spelling, or unset them: `dump-ingest config schema` lists all settings.",
        )
    given = sum(1 for origin in loaded.origins.values() if origin != "default")
    return Check("settings", ok=True, detail=f"valid, {given} of {len(loaded.origins)} given")


def _dump(directory: Path) -> str:
    # A parent that may not be entered hides the dump: it would seem not to exist.
    _require_readable(directory, directory)
    dump = find_dump(directory)
    scan = dump.scan({})
    _require_none_denied(dump, scan)
    # A few files are enough: the files of a dump all have the same owner and mode.
    for listing in scan.listings[:_TRIED]:
        for file in listing.files[-1:]:
            _require_readable(dump.root / file.path, dump.root)
    steps = [listing.key for listing in scan.listings if listing.key.step is not None]
    ranks = {key.rank for key in steps}
    nbytes = sum(listing.nbytes for listing in scan.listings)
    layouts = "+".join(sorted({listing.layout for listing in scan.listings} - {""})) or "empty"
    return f"{layouts} at {dump.root}: {len(ranks)} ranks, {len(steps)} steps, {nbytes} bytes"


def _require_none_denied(dump: Dump, scan: DumpScan) -> None:
    """Do nothing if the scan could read everything that it came to.

    Raises:
        AccessDenied: it could not; the message says why.
    """
    problems = [*scan.problems, *(problem for listing in scan.listings for problem in listing.problems)]
    denied = [problem for problem in problems if problem.denied]
    if denied:
        _require_readable(dump.root / denied[0].path, dump.root)
        raise AccessDenied(
            f"{dump.root}: {len(denied)} files or directories cannot be read; the first: {denied[0]}",
            hint=denied[0].hint,
        )


def _left_out(directory: Path) -> list[Check]:
    """Report directories that look like ranks or steps, and are not taken for any."""
    problems = [problem for problem in find_dump(directory).scan({}).problems if problem.left_out]
    if not problems:
        return []
    more = f" (and {len(problems) - _NAMED} more)" if len(problems) > _NAMED else ""
    detail = "; ".join(str(problem) for problem in problems[:_NAMED]) + more
    return [Check("names", ok=False, detail=detail, hint=problems[0].hint)]


def _disk(settings: Settings, directory: Path) -> list[Check]:
    """Report how full the disk of a dump is. That is never a failure: everything works until it is full."""
    space = space_at(directory)
    if space is None:
        return []
    share = space.free_nbytes / max(space.nbytes, 1)
    detail = f"{space.free_nbytes} of {space.nbytes} bytes free ({share:.0%})"
    detail += f", {space.free_inodes} inodes" if space.inodes else ""
    if parse_threshold(settings.pressure_free).freedom(space) >= 1:
        return [Check("disk", ok=True, detail=detail)]
    hint = (
        f"Less is free than pressure_free ({settings.pressure_free}), so under_pressure "
        f"({settings.under_pressure}) applies. Free some space, or ingest with `--after-commit delete`."
    )
    return [Check("disk", ok=True, detail=f"{detail}, nearly full", hint=hint)]


def _require_readable(path: Path, dump: Path) -> None:
    """Do nothing if a path can be read.

    Raises:
        AccessDenied: it cannot; the message says who owns it and who asks, the hint what to change.
    """
    if barrier := first_barrier(path):
        me = Identity.of_this_process()
        raise AccessDenied(barrier.explain(me), hint=barrier.advice(me, dump))


def _store(settings: Settings, directory: Path | None) -> str:
    """Write an object, read it back and delete it."""
    dump = None if directory is None else find_dump(directory)
    objects = open_objects(place_of_store(settings, dump))
    root = commit.read_root(objects)
    key = f".doctor-{uuid.uuid4().hex}"
    payload = os.urandom(64)
    objects.put(key, payload)
    if objects.get(key) != payload:
        raise StoreError(
            f"{settings.store}: an object did not come back as it was written ({key}, {len(payload)} bytes)",
            hint="Do not ingest into this store. Look for a proxy or a cache in between, check the storage "
            "itself, and run doctor again.",
        )
    objects.delete(key)
    state = "no store there yet" if root is None else f"store format {root}"
    return f"{settings.store}: writable, {state}"


def _belongs(settings: Settings, directory: Path) -> str:
    """Find out whether the store has the ranks of the dump from this dump, and from no other."""
    dump = find_dump(directory, rank_map=settings.rank_map)
    host = settings.host or socket.gethostname()
    objects = open_objects(place_of_store(settings, dump))
    belonging = Belonging(dump, objects, grid_of(settings), host, set(settings.continues))
    ranks = {listing.key.rank for listing in dump.scan({}).listings}
    for error in belonging.check(ranks):
        raise error
    return f"{len(ranks)} ranks of {dump.root}: new to the store, or in it from this dump"


def _scheduler(settings: Settings) -> str:
    """Connect to the Dask scheduler, and count its workers."""
    with Cluster(settings) as cluster:
        client = cluster.connect()
        workers = client.scheduler_info()["workers"]
        encrypted = "encrypted" if address_of(client).startswith("tls://") else "not encrypted"
    threads = sum(worker["nthreads"] for worker in workers.values())
    return f"{settings.scheduler}: {len(workers)} workers, {threads} threads, {encrypted}"
