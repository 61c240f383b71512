"""The checks of `dump-ingest doctor`: each answers one question, and says what to do if it fails."""

from __future__ import annotations

import grp
import http.client
import json
import os
import platform
import pwd
import socket
import stat
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ingest.consolidating.lease import LEASE_S, VIEW_LEASE, read_lease
from ingest.disk import parse_threshold, space_at
from ingest.dispatch.cluster import SAME_VERSION_HINT, Cluster, address_of
from ingest.dump_configs.check import check_dump_config, worst_first
from ingest.layouts.base import Dump, DumpScan, Listing, ProblemKind
from ingest.layouts.detect import find_dump, proposed_hint
from ingest.reader.choice import format_ranges
from ingest.reader.context.files import COPIES
from ingest.reader.cube_conditions import open_cubes
from ingest.reader.text import counted, counted_steps
from ingest.service.foreign_dump import ForeignDumpCheck
from ingest.service.live_watcher import FROM_HINT, get, metrics_of, process_address, store_in
from ingest.settings import LoadedSettings, Settings
from ingest.store_gc.execute import read_last_runs
from ingest.units import human_bytes
from ingest.wiring.stores import grid_of, place_of_store, refuse_misplaced
from workers import __version__
from workers.errors import (
    AccessDenied,
    ClockSkewed,
    ClusterError,
    DumpIngestError,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from workers.host.credentials import masked
from workers.host.paths import from_here
from workers.scheduler import WORKER_TTL_S, silences
from workers.store import commit
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question."""

    check: str
    ok: bool
    detail: str
    hint: str = ""


#: How far the clocks of this host and of the store may be apart, in seconds.
_MAX_CLOCK_ERROR_S = 120.0
#: How long a step may be unchanged and not be in the store, in seconds; as for the alert on the lag.
MAX_LAG_S = 900.0
#: How the check of the view begins if somebody holds its lease.
KEPT = "kept by process"
#: How many commits of the steps of a dump are read, the newest ones.
_READ = 1024


def check_clock(store_time: float, host_time: float) -> Check:
    """Compare the clock of this host with the time that the store gave to an object just now."""
    error_s = host_time - store_time
    detail = f"{abs(error_s):.0f} s {'ahead of' if error_s > 0 else 'behind'} the store's"
    if abs(error_s) <= _MAX_CLOCK_ERROR_S:
        return Check("clock", ok=True, detail=detail)
    hint = "Start the time service of this host (`timedatectl set-ntp true`), or correct that of the store."
    return Check("clock", ok=False, detail=detail, hint=hint)


def _check_gc(objects: ObjectStore) -> Check | None:
    runs = read_last_runs(objects)
    if runs is None:
        return None
    if not runs.is_failing:
        return Check("gc", ok=True, detail=f"ended well {_ago(runs.succeeded_at)}")
    hint = (
        "Correct that, and run the same gc by hand: its success ends the alert. It needs the right to delete."
    )
    return Check("gc", ok=False, detail=f"failed {_ago(runs.failed_at)}: {runs.reason}", hint=hint)


def _check_view(objects: ObjectStore) -> Check | None:
    """Say whether somebody keeps the consolidated view up to date; None if there is nothing to be in it."""
    last = {max(commit.list_steps(objects, rank), default=-1) for rank in commit.list_ranks(objects)} - {-1}
    if not last:
        return None
    cubes = open_cubes(objects)
    held = set() if cubes is None else set(cubes.steps)
    missing = sorted(last - held)
    record = read_lease(objects, VIEW_LEASE)
    age_s = None if record is None else time.time() - record.renewed_at
    if record is not None and age_s is not None and abs(age_s) <= LEASE_S:
        return Check("view", ok=True, detail=f"{KEPT} {record.pid} on {record.host}")
    if not missing:
        return Check("view", ok=True, detail="up to date; nobody keeps it")
    detail = f"step {missing[-1]} is not in the consolidated view, and nobody keeps it"
    if record is not None:
        detail += f"; process {record.pid} on {record.host} did until {_ago(record.renewed_at)}"
    hint = "Start `dump-ingest consolidate STORE --follow`, with this URL; or run it once, without --follow."
    return Check("view", ok=record is None, detail=detail, hint=hint)


def _check_backlog(objects: ObjectStore, listings: Sequence[Listing]) -> Check:
    steps = sorted(
        (listing for listing in listings if listing.key.step is not None),
        key=lambda listing: listing.key.order,
    )
    keys = [listing.key for listing in steps]
    # That the store has anything of a step is taken for its commit, but for the newest: a writer may be at
    # work on them, or may have been killed.
    begun = set(commit.list_keys(objects, {key.rank for key in keys}))
    newest = [key for key in keys if key in begun][-_READ:]
    missing = set(newest) - commit.read_records(objects, newest).keys() | set(keys) - begun
    left = [listing for listing in steps if listing.key in missing]
    if not left:
        steps_are = "the only step is" if len(keys) == 1 else f"all {counted_steps(keys)} are"
        return Check("backlog", ok=True, detail=f"{steps_are} in the store")
    nbytes = sum(listing.nbytes for listing in left)
    oldest = min(left, key=lambda listing: listing.newest_change)
    detail = (
        f"{counted_steps([listing.key for listing in left])} ({human_bytes(nbytes)}) not in the store; "
        f"{oldest.key} has not changed for {max(time.time() - oldest.newest_change, 0):.0f} s"
    )
    if time.time() - oldest.newest_change <= MAX_LAG_S:
        return Check("backlog", ok=True, detail=detail)
    hint = (
        "If no watcher runs, start it, or run `dump-ingest ingest DUMP --store STORE`. Otherwise "
        "`dump-ingest watch --explain --from HOST:9108` says what each step waits for."
    )
    return Check("backlog", ok=False, detail=detail, hint=hint)


def _ago(at: float) -> str:
    minutes = max(time.time() - at, 0) / 60
    return f"{minutes:.0f} min ago" if minutes < 120 else f"{minutes / 60:.0f} h ago"


#: How long a worker may send no heartbeat, in seconds. With hundreds of workers, each sends one every five.
_SILENT_S = 15.0
#: How many workers are named.
_NAMED_WORKERS = 4


def check_scheduler(settings: Settings) -> Check:
    """Connect to the Dask scheduler, count its workers, and name those that it does not hear of.

    Raises:
        ClusterError: the scheduler or its workers do not answer, or lack dump-ingest.
    """
    with Cluster(settings) as cluster:
        client = cluster.reach()
        workers = client.scheduler_info(n_workers=-1)["workers"]
        encrypted = "encrypted" if address_of(client).startswith("tls://") else "not encrypted"
        silent = _silent_workers(settings, client)
        if not silent:  # one that hangs would be waited for
            cluster.connect()
    threads = sum(worker["nthreads"] for worker in workers.values())
    detail = (
        f"{settings.scheduler}: {counted(len(workers), 'worker')}, {counted(threads, 'thread')}, {encrypted}"
    )
    if not silent:
        return Check("scheduler", ok=True, detail=detail)
    longest = sorted(silent, key=lambda address: -silent[address])
    named = ", ".join(f"{address} ({silent[address]:.0f} s)" for address in longest[:_NAMED_WORKERS])
    more = f" and {len(silent) - _NAMED_WORKERS} more" if len(silent) > _NAMED_WORKERS else ""
    hint = (
        "They hang: restart them. Without that, the scheduler gives their tasks to others when it has not "
        f"heard of them for {1.5 * WORKER_TTL_S:.0f} s at most."
    )
    return Check("scheduler", ok=False, detail=f"{detail}; it does not hear of {named}{more}", hint=hint)


def _silent_workers(settings: Settings, client: Client) -> dict[str, float]:
    try:
        silent_s = client.run_on_scheduler(silences)
    except (ImportError, AttributeError) as exc:
        raise ClusterError(
            f"{settings.scheduler}: the scheduler does not have this version of dump-ingest ({exc})",
            hint=SAME_VERSION_HINT,
        ) from exc
    return {address: seconds for address, seconds in silent_s.items() if seconds > _SILENT_S}


_ANSWER_S = 5.0
#: How long a process may do nothing before it hangs, by its heartbeat, in seconds.
_HANGS_S = 120.0
#: A process that is younger may have been restarted again and again, in seconds.
_YOUNG_S = 120.0
_METRICS, _READY = "/metrics", "/ready"
_GONE_HINT = (
    "Look why it ended or was never started: `systemctl status`, `kubectl get pods` (Pending, Evicted, "
    "CrashLoopBackOff), `squeue`; its last log lines say the rest. Exit code 137: raise its memory limit. "
    "Then start it. If it runs, compare the port, and look for a firewall."
)
_HANGS_HINT = "Restart it. Before, look whether the file system of the dump and the store answer on its host."
_OTHER_STORE_HINT = (
    "Give all processes of a run the same setting `store`, and restart those that have a different one."
)
_YOUNG_HINT = (
    "If nobody restarted it, it restarts again and again: look at the end of its log before the last start. "
    "Exit code 137: raise its memory limit."
)
#: By which series a process is told to be one of ours.
_ROLES = {"watcher": "dump_ingest_watcher_ranks", "consolidator": "dump_ingest_consolidator_lease_held"}
_Metrics: TypeAlias = Mapping[str, Mapping[str, float]]


def check_process(url: str, store: str, *, is_view_kept: bool) -> Check:
    """Say whether a process answers, makes progress, and has the same store.

    Args:
        url: where it serves its metrics, such as `http://host:9108`.
        store: the URL of the store that it should have, without credentials; "" if none is named.
        is_view_kept: whether somebody holds the lease of the consolidated view.

    Raises:
        UsageError: the URL is not one of a web server.
    """
    address = process_address(url)
    metrics: dict[str, dict[str, float]] = {}
    try:
        status, page = get(f"{address}{_METRICS}", _ANSWER_S)
        with suppress(ValueError):  # no metrics
            metrics = metrics_of(page.decode(errors="replace") if status == http.client.OK else "")
        ready, reason = get(f"{address}{_READY}", _ANSWER_S)
    except TimeoutError:
        detail = f"{address} accepts connections, and gives no answer in {_ANSWER_S:g} s: it hangs"
        return Check("process", ok=False, detail=detail, hint=_HANGS_HINT)
    except (OSError, http.client.HTTPException) as exc:
        detail = f"nobody answers at {address}: {getattr(exc, 'reason', None) or exc}"
        return Check("process", ok=False, detail=detail, hint=_GONE_HINT)
    role = next((role for role, name in _ROLES.items() if name in metrics), "")
    if not role:
        refused = "" if status == http.client.OK else f": it answers {_METRICS} with status {status}"
        detail = f"{address} is not a watcher or consolidator{refused}"
        return Check("process", ok=False, detail=detail, hint=FROM_HINT)
    if ready != http.client.OK:
        hint = "Run `dump-ingest doctor DUMP` as its user: it says what to change."
        detail = f"{role} at {address}: {reason.decode(errors='replace').strip()}"
        return Check("process", ok=False, detail=detail, hint=hint)
    served, age_s = store_in(metrics), _age_s(metrics)
    problems = [
        (store not in ("", served), f"has the store {served}, and not {store}", _OTHER_STORE_HINT),
        *(
            _of_watcher(metrics, address)
            if role == "watcher"
            else _of_consolidator(metrics, is_view_kept=is_view_kept)
        ),
    ]
    silent_s = _one(metrics, "time_seconds") - _one(metrics, "heartbeat_timestamp_seconds")
    problems.insert(0, (silent_s > _HANGS_S, f"has made no progress for {silent_s:.0f} s", _HANGS_HINT))
    for is_so, what, hint in problems:
        if is_so:
            return Check("process", ok=False, detail=f"{role} at {address}: {what}", hint=hint)
    detail = f"{role} at {address}: makes progress; started {age_s:.0f} s ago"
    return Check("process", ok=True, detail=detail, hint=_YOUNG_HINT if age_s <= _YOUNG_S else "")


def _of_consolidator(metrics: _Metrics, *, is_view_kept: bool) -> list[tuple[bool, str, str]]:
    """Return what may be wrong with the work of a consolidator: whether it is, what, and what to do."""
    is_idle = not _one(metrics, "consolidator_lease_held") and not is_view_kept
    hint = (
        f"The store does not exist under its URL, {store_in(metrics)}, or does not answer there: its log "
        "line `waiting` says which. Correct the setting `store`."
    )
    return [(is_idle and _age_s(metrics) > _YOUNG_S, "holds no lease, and nobody else does", hint)]


def _of_watcher(metrics: _Metrics, address: str) -> list[tuple[bool, str, str]]:
    age_s, has_seen = _age_s(metrics), bool(_one(metrics, "watcher_last_look_timestamp_seconds"))
    lag_s = _one(metrics, "time_seconds") - _one(metrics, "watcher_oldest_pending_timestamp_seconds")
    waiting = int(sum(metrics.get("dump_ingest_watcher_pending_steps", {}).values()))
    steps = f"{counted(waiting, 'step')} wait{'s' if waiting == 1 else ''}"
    return [
        (
            not has_seen and age_s > _YOUNG_S,
            f"has seen no dump since it started {age_s:.0f} s ago",
            "Run `dump-ingest doctor DUMP` on its host with its DUMP: it says why that is not a dump.",
        ),
        (
            has_seen and waiting > 0 and lag_s > MAX_LAG_S,
            f"{steps} for a commit, the oldest for {lag_s:.0f} s",
            f"Ask why: dump-ingest watch --explain --from {address}",
        ),
    ]


def _one(metrics: _Metrics, name: str) -> float:
    """Return the value of a series of which there is one, or the smallest; 0 if there is none."""
    return min(metrics.get(f"dump_ingest_{name}", {}).values(), default=0.0)


def _age_s(metrics: _Metrics) -> float:
    started = metrics.get("process_start_time_seconds", {}).values()
    return _one(metrics, "time_seconds") - min(started, default=0.0)


#: Steps of which one file is tried.
_TRIED = 8
#: How many directories are named.
_NAMED = 8
_NO_STORE_HINT = (
    "The first commit creates it. If watchers have committed already, this is not their store: compare the "
    "setting `store` of all processes (`dump-ingest config show`)."
)
_MISNAMED_HINT = "Nothing in it is ingested. Rename it as docs/formats.md shows, or move it out of the dump."
_ONLY_FILES = "no tensors in any known layout: tensor files would be kept as files"

#: Of a store that does not answer at all. Other commands say that nothing half done is visible.
_UNREACHABLE_HINT = (
    "Compare the address with the URL of the store and AWS_ENDPOINT_URL, and look whether this host reaches "
    "it (name, proxy, firewall); then run doctor again."
)
#: Of a store that is a directory.
_UNWRITABLE_HINT = "Look whether its file system is full, mounted read-only or away; then run doctor again."

#: The store, if the dump cannot be read.
_NOT_CHECKED = Check(
    "store",
    ok=False,
    detail="not checked: without the dump, nobody can tell whether the store would lie in it",
    hint="Mend the dump first, or check the store alone: dump-ingest doctor --store URL",
)


@dataclass(frozen=True, slots=True)
class _Scanned:
    dump: Dump
    scan: DumpScan


def run_checks(loaded: LoadedSettings, directory: Path | None, processes: Sequence[str] = ()) -> list[Check]:
    """Check software and settings; and dump, store, scheduler and processes, if they are named.

    Args:
        loaded: the settings.
        directory: the dump.
        processes: where watchers and consolidators serve their metrics, such as `http://host:9108`.

    Raises:
        UsageError: a URL is not one of a web server.
    """
    settings = loaded.settings
    software = f"dump-ingest {__version__}, Python {platform.python_version()}, {platform.machine()}"
    results = [
        Check("software", ok=True, detail=software),
        Check("identity", ok=True, detail=str(Identity.of_this_process())),
        _settings(loaded),
    ]
    scanned: _Scanned | None = None
    if directory is not None:
        try:
            scanned = _scan(settings, directory)
            results += _dump(settings, scanned)
        except DumpIngestError as exc:
            results.append(_failure("dump", exc))
        results += _disk(settings, directory)
    if settings.store is not None and directory is not None and scanned is None:
        results.append(_NOT_CHECKED)
    elif settings.store is not None:
        results += _guarded("store", lambda: _reachable_store(settings, scanned))
    if settings.scheduler is not None:
        results += _guarded("scheduler", lambda: [check_scheduler(settings)])
    if processes:
        url = "" if settings.store is None else masked(place_of_store(settings, None).url)
        is_view_kept = any(result.check == "view" and result.detail.startswith(KEPT) for result in results)
        results += [check_process(process, url, is_view_kept=is_view_kept) for process in processes]
    return results


def _guarded(name: str, check: Callable[[], list[Check]]) -> list[Check]:
    try:
        return check()
    except DumpIngestError as exc:
        return [_failure(name, exc)]


def _failure(name: str, exc: DumpIngestError) -> Check:
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


def _scan(settings: Settings, directory: Path) -> _Scanned:
    # A parent that may not be entered hides the dump: it would seem not to exist.
    _require_readable(directory, directory)
    dump = find_dump(directory, rank_map=settings.rank_map, layout=settings.layout)
    scan = dump.scan({})
    problems = [*scan.problems, *(problem for listing in scan.listings for problem in listing.problems)]
    denied = [problem for problem in problems if problem.denied]
    if denied:
        _require_readable(dump.root / denied[0].path, dump.root)
        raise AccessDenied(
            f"{dump.root}: {counted(len(denied), 'path')} cannot be read; the first: {denied[0]}",
            hint=denied[0].hint,
        )
    # A few files are enough: the files of a dump all have the same owner and mode.
    for listing in scan.listings[:_TRIED]:
        for file in listing.files[-1:]:
            _require_readable(dump.root / file.path, dump.root)
    return _Scanned(dump, scan)


def _dump(settings: Settings, scanned: _Scanned) -> list[Check]:
    scan = scanned.scan
    keys = [listing.key for listing in scan.listings if listing.key.step is not None]
    ranks, steps = {key.rank for key in keys}, {key.step for key in keys}
    nbytes = sum(listing.nbytes for listing in scan.listings)
    names = {name for listing in scan.listings for name in listing.layout.split("+")}
    layouts = "+".join(sorted(names - {""})) or "empty"
    size = f"{counted(len(ranks), 'rank')}, {counted(len(steps), 'step')}, {human_bytes(nbytes)}"
    detail = f"{layouts} at {scanned.dump.root}: {size}"
    checks = [*_names(scan), *_expected_ranks(settings, scan, ranks), *check_configuration(scanned.dump.root)]
    return [Check("dump", ok=True, detail=detail), *_layout(scanned), *checks]


def _layout(scanned: _Scanned) -> list[Check]:
    """Propose a pattern if the first steps have no tensors by any layout; nothing if they have some."""
    steps = [listing for listing in scanned.scan.listings if listing.key.step is not None]
    described = (scanned.dump.describe(listing) for listing in steps[:_TRIED])
    if any(step.named or step.reported for step in described):
        return []
    hint = proposed_hint(scanned.dump.root)
    # Directories of checkpoints have the same names, beside a job that has not dumped yet.
    return [Check("layout", ok=True, detail=_ONLY_FILES, hint=hint)] if hint else []


def _expected_ranks(settings: Settings, scan: DumpScan, ranks: Collection[int]) -> list[Check]:
    given = settings.expected_ranks
    expected = scan.expected_ranks if given is None else given
    if not expected:
        return []
    by = "the rank table" if given is None else "expected_ranks"
    detail = f"{len(ranks)} of {counted(expected, 'rank')}, by {by}"
    if len(ranks) >= expected:
        return [Check("ranks", ok=True, detail=detail)]
    missing = format_ranges(sorted(set(range(expected)) - set(ranks)))
    hint = (
        f"Ranks {missing} have no dump here. If they are on another host, ask `doctor` there; otherwise look "
        "at their processes. If only some ranks dump on purpose, set expected_ranks to their number, or to 0."
    )
    # A dump on the disk of one host never has all of them.
    return [Check("ranks", ok=given is None, detail=detail, hint=hint)]


def _names(scan: DumpScan) -> list[Check]:
    problems = [problem for problem in scan.problems if problem.kind is ProblemKind.NAME]
    if not problems:
        return []
    more = f" (and {len(problems) - _NAMED} more)" if len(problems) > _NAMED else ""
    detail = "; ".join(str(problem) for problem in problems[:_NAMED]) + more
    return [Check("names", ok=False, detail=detail, hint=problems[0].hint or _MISNAMED_HINT)]


def _disk(settings: Settings, directory: Path) -> list[Check]:
    """Report how full the disk of a dump is. That is never a failure: everything works until it is full."""
    space = space_at(directory)
    if space is None:
        return []
    share = space.free_nbytes / max(space.nbytes, 1)
    detail = f"{human_bytes(space.free_nbytes)} of {human_bytes(space.nbytes)} free ({share:.0%})"
    detail += f", {space.free_inodes} inodes" if space.inodes else ""
    if parse_threshold(settings.pressure_free).freedom(space) >= 1:
        return [Check("disk", ok=True, detail=detail)]
    hint = (
        f"Less is free than pressure_free ({settings.pressure_free}), so under_pressure "
        f"({settings.under_pressure}) applies. Free some space, or ingest with `--after-commit delete`."
    )
    return [Check("disk", ok=True, detail=f"{detail}, nearly full", hint=hint)]


def _require_readable(path: Path, dump: Path) -> None:
    if barrier := _first_barrier(path):
        me = Identity.of_this_process()
        raise AccessDenied(barrier.explain(me), hint=barrier.advice(me, dump))


def _reachable_store(settings: Settings, scanned: _Scanned | None) -> list[Check]:
    try:
        return _store(settings, scanned)
    except ClockSkewed:
        raise
    except StoreUnavailable as exc:
        is_remote = "://" in place_of_store(settings, None).url
        hint = _UNREACHABLE_HINT if is_remote else _UNWRITABLE_HINT
        return [Check("store", ok=False, detail=exc.message, hint=hint)]


def _store(settings: Settings, scanned: _Scanned | None) -> list[Check]:
    objects = open_objects(place_of_store(settings, None if scanned is None else scanned.dump))
    root = commit.read_root(objects)
    if root is None:
        refuse_misplaced(objects)
    clock = _write_and_read_back(objects, settings)
    belongs = [_belongs(settings, scanned, objects)] if scanned and not settings.replace else []
    if root is None:
        detail = f"{settings.store}: writable, no store there yet"
        return [Check("store", ok=True, detail=detail, hint=_NO_STORE_HINT), *clock, *belongs]
    detail = f"{settings.store}: writable, store format {root}"
    # Steps of another dump with the same numbers are not those of this one.
    is_its_store = all(check.ok for check in belongs)
    listings = scanned.scan.listings if scanned and is_its_store else ()
    backlog = _check_backlog(objects, listings) if listings else None
    checks = (backlog, _check_view(objects), _check_gc(objects))
    return [Check("store", ok=True, detail=detail), *clock, *belongs, *(check for check in checks if check)]


def _write_and_read_back(objects: ObjectStore, settings: Settings) -> list[Check]:
    """Write an object, read it back and delete it; return how far the clock of the store is from ours.

    Raises:
        StoreError: it is another one, or the store refused.
    """
    key = f".doctor-{uuid.uuid4().hex}"
    payload = os.urandom(64)
    objects.put(key, payload)
    if objects.get(key) != payload:
        raise StoreError(
            f"{settings.store}: an object did not come back as it was written ({key}, {len(payload)} bytes)",
            hint="Do not ingest into this store. Look for a proxy or a cache in between, check the storage "
            "itself, and run doctor again.",
        )
    written = objects.listed(key).get("")
    now = time.time()
    objects.delete(key)
    return [] if written is None else [check_clock(written.modified_at, now)]


def _belongs(settings: Settings, scanned: _Scanned, objects: ObjectStore) -> Check:
    host = settings.host or socket.gethostname()
    foreign_dumps = ForeignDumpCheck(scanned.dump, objects, grid_of(settings), host, set(settings.continues))
    ranks = {listing.key.rank for listing in scanned.scan.listings}
    for error in foreign_dumps.check(ranks).values():
        return _failure("dump in store", error)
    detail = (
        f"{counted(len(ranks), 'rank')} of {scanned.dump.root}: new to the store, or in it from this dump"
    )
    return Check("dump in store", ok=True, detail=detail)


_SHOWN = 3


def check_configuration(root: Path) -> list[Check]:
    """Say what is wrong in the configuration that a dump has of itself; nothing without one."""
    copies = sorted(root.glob(COPIES))
    if not copies:
        return []
    path = copies[0]
    about = _about(path.with_name("config.json"))
    version, device = str(about.get("ms_version", "")), str(about.get("device_target", ""))
    name = "dump configuration"
    try:
        checked = check_dump_config(path, version=version, device=device if device != "Davinci" else "Ascend")
    except UsageError as exc:
        return [Check(name, ok=False, detail=exc.message, hint=exc.hint)]
    if not checked.findings:
        return [Check(name, ok=True, detail=f"{path}: nothing is wrong with it")]
    shown = "; ".join(str(finding) for finding in worst_first(checked.findings)[:_SHOWN])
    hint = f"`dump-ingest check {path}` shows everything, with the sources."
    return [Check(name, ok=not checked.refused, detail=f"{path}: {shown}", hint=hint)]


def _about(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is, as the file system sees it."""

    uid: int
    groups: frozenset[int]

    @classmethod
    def of_this_process(cls) -> Identity:
        """Return the effective user and groups of this process."""
        return cls(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))

    def __str__(self) -> str:
        groups = ", ".join(_group(gid) for gid in sorted(self.groups))
        return f"uid {_user(self.uid)}, groups {groups}"


@dataclass(frozen=True, slots=True)
class Barrier:
    """The first file or directory on the way to a path that a process may not pass."""

    path: Path
    mode: int
    uid: int
    gid: int
    is_directory: bool

    def explain(self, me: Identity) -> str:
        """Return who owns the file or directory, what its mode is, and who asks, as one sentence."""
        what = "directory" if self.is_directory else "file"
        return (
            f"{self.path}: permission denied; the {what} has mode {stat.S_IMODE(self.mode):04o}, owner "
            f"{_user(self.uid)} and group {_group(self.gid)}, and this process is {me}"
        )

    def advice(self, me: Identity, dump: Path) -> str:
        """Return advice on how to let this process read the whole dump."""
        if self._admits(me):
            return (
                "The mode would admit this process, so an access control list, a security module (SELinux, "
                "AppArmor) or the file server refuses it. Ask whoever runs the file system, or run as the "
                "owner of the dump."
            )
        if me.uid == self.uid:
            return f"The owner itself is locked out: chmod -R u+rX {dump}"
        run_as = (
            f"Run as uid {self.uid}: `User=` in a drop-in of the systemd unit, "
            f"`docker run --user {self.uid}`, `runAsUser: {self.uid}` in Kubernetes"
        )
        ways = [run_as]
        if self._grants(stat.S_IRGRP, stat.S_IXGRP):
            join = "`SupplementaryGroups=` in systemd, `supplementalGroups` in Kubernetes"
            ways.append(f"join group {self.gid}: {join}")
        ways.append(
            f"as the owner: setfacl -R -m u:{me.uid}:rX {dump} (and again with -d, for files that come later)"
        )
        return "; or ".join(ways) + "."

    def _admits(self, me: Identity) -> bool:
        # Root counts like anybody else: if it is refused, it runs without its privileges.
        if me.uid == self.uid:
            return self._grants(stat.S_IRUSR, stat.S_IXUSR)
        if self.gid in me.groups:
            return self._grants(stat.S_IRGRP, stat.S_IXGRP)
        return self._grants(stat.S_IROTH, stat.S_IXOTH)

    def _grants(self, read: int, enter: int) -> bool:
        needed = read | enter if self.is_directory else read
        return self.mode & needed == needed


def _first_barrier(path: Path) -> Barrier | None:
    """Return the first file or directory that keeps this process from reading a path; None if none does.

    Links are followed. A path that does not exist has no barrier.

    Raises:
        UsageError: the path is relative, and the current directory was deleted.
    """
    path = Path(os.path.realpath(from_here(path)))
    for ancestor in (*reversed(path.parents), path):
        try:
            status = ancestor.stat()
        except OSError:
            return None
        is_directory = stat.S_ISDIR(status.st_mode)
        # Directories on the way only have to be entered; the path itself has to be read, too.
        needed = (os.X_OK if is_directory else 0) | (os.R_OK if ancestor == path else 0)
        if not os.access(ancestor, needed, effective_ids=True):
            return Barrier(ancestor, status.st_mode, status.st_uid, status.st_gid, is_directory)
    return None


def _user(uid: int) -> str:
    try:
        return f"{uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:  # a container knows only a few names
        return str(uid)


def _group(gid: int) -> str:
    try:
        return f"{gid} ({grp.getgrgid(gid).gr_name})"
    except KeyError:
        return str(gid)
