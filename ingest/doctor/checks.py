"""The checks of `dump-ingest doctor`: each answers one question with what to do about a no."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingest.disk.pressure import parse_threshold
from ingest.disk.space import space_at
from ingest.dispatch.cluster import Cluster, address_of
from ingest.doctor.access import Identity, first_barrier
from ingest.layouts.detect import find_dump
from ingest.settings import LoadedSettings, Settings
from ingest.wiring import place_of_store
from workers import __version__
from workers.errors import AccessDenied, DumpIngestError, StoreError
from workers.store import commit
from workers.store.opening import open_objects


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question."""

    check: str
    ok: bool
    detail: str
    hint: str = ""


def run_checks(loaded: LoadedSettings, dump: Path | None) -> list[Check]:
    """Check software, settings, and, where they are named, dump, store and scheduler."""
    software = f"dump-ingest {__version__}, Python {platform.python_version()}, {platform.machine()}"
    results = [
        Check("software", ok=True, detail=software),
        Check("identity", ok=True, detail=str(Identity.of_this_process())),
        _settings(loaded),
    ]
    if dump is not None:
        results.append(_guarded("dump", lambda: _dump(dump)))
        results += _disk(loaded.settings, dump)
    if loaded.settings.store is not None:
        results.append(_guarded("store", lambda: _store(loaded.settings, dump)))
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
            "settings", ok=False, detail=f"no settings: {names}", hint="See `dump-ingest config schema`."
        )
    given = sum(1 for origin in loaded.origins.values() if origin != "default")
    return Check("settings", ok=True, detail=f"valid, {given} of {len(loaded.origins)} given")


def _dump(directory: Path) -> str:

    # A parent that may not be entered would hide the dump: it would seem not to exist.
    _demand(directory, directory)
    dump = find_dump(directory)
    scan = dump.scan({})
    denied = [
        p for p in (*scan.problems, *(p for listing in scan.listings for p in listing.problems)) if p.denied
    ]
    if denied:
        _demand(dump.root / denied[0].path, dump.root)
        raise AccessDenied(f"{len(denied)} cannot be taken, first: {denied[0]}", hint=denied[0].hint)
    # A few are enough: the files of a dump all have the same owner and mode.
    for listing in scan.listings[:8]:
        for file in listing.files[-1:]:
            _demand(dump.root / file.path, dump.root)
    steps = [listing.key for listing in scan.listings if listing.key.step is not None]
    ranks = {key.rank for key in steps}
    nbytes = sum(listing.nbytes for listing in scan.listings)
    layouts = "+".join(sorted({listing.layout for listing in scan.listings} - {""})) or "empty"
    return f"{layouts} at {dump.root}: {len(ranks)} ranks, {len(steps)} steps, {nbytes} bytes"


def _disk(settings: Settings, directory: Path) -> list[Check]:
    """Say how full the disk of a dump is. No failure: everything works until it is full."""
    space = space_at(directory)
    if space is None:
        return []
    share = space.free_nbytes / max(space.nbytes, 1)
    detail = f"{space.free_nbytes} of {space.nbytes} bytes free ({share:.0%})"
    detail += f", {space.free_inodes} inodes" if space.inodes else ""
    if parse_threshold(settings.pressure_free).freedom(space) >= 1:
        return [Check("disk", ok=True, detail=detail)]
    hint = f"Less than pressure_free ({settings.pressure_free}): under_pressure is {settings.under_pressure}."
    return [Check("disk", ok=True, detail=f"{detail}, nearly full", hint=hint)]


def _demand(path: Path, dump: Path) -> None:
    """Do nothing where a path can be read; else say who may, who this is, and what to set.

    Raises:
        AccessDenied: it cannot.
    """
    if barrier := first_barrier(path):
        me = Identity.of_this_process()
        raise AccessDenied(barrier.explain(me), hint=barrier.advice(me, dump))


def _store(settings: Settings, directory: Path | None) -> str:

    dump = None if directory is None else find_dump(directory)
    objects = open_objects(place_of_store(settings, dump))
    root = commit.read_root(objects)
    key = f".doctor-{uuid.uuid4().hex}"
    payload = os.urandom(64)
    objects.put(key, payload)
    if objects.get(key) != payload:
        raise StoreError(f"{settings.store}: an object did not come back as it was written")
    objects.delete(key)
    state = "no store there yet" if root is None else f"store format {root}"
    return f"{settings.store}: writable, {state}"


def _scheduler(settings: Settings) -> str:

    with Cluster(settings) as cluster:
        client = cluster.connect()
        workers = client.scheduler_info()["workers"]
        encrypted = "encrypted" if address_of(client).startswith("tls://") else "not encrypted"
    threads = sum(worker["nthreads"] for worker in workers.values())
    return f"{settings.scheduler}: {len(workers)} workers, {threads} threads, {encrypted}"
