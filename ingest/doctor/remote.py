"""Checks of what is asked over the network: the store, the scheduler, and processes that run."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ingest.consolidating.lease import LEASE_S, VIEW_LEASE, read_lease
from ingest.dispatch.cluster import SAME_VERSION_HINT, Cluster, address_of
from ingest.layouts.base import Listing
from ingest.reader.cube_conditions import open_cubes
from ingest.reader.text import counted, counted_steps
from ingest.service.live_watcher import FROM_HINT, get, metrics_of, process_address, store_in
from ingest.settings import Settings
from ingest.store_gc.last_run import read_last_runs
from ingest.units import human_bytes
from workers.errors import ClusterError
from workers.scheduler import WORKER_TTL_S, silences
from workers.store import commit
from workers.store.objects import ObjectStore

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question."""

    check: str
    """The name of the check."""
    ok: bool
    detail: str
    hint: str = ""
    """What to do, if it failed or soon may."""


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


def check_gc(objects: ObjectStore) -> Check | None:
    """Say how the last run of gc ended; None if it never ran."""
    runs = read_last_runs(objects)
    if runs is None:
        return None
    if not runs.is_failing:
        return Check("gc", ok=True, detail=f"ended well {_ago(runs.succeeded_at)}")
    hint = (
        "Correct that, and run the same gc by hand: its success ends the alert. It needs the right to delete."
    )
    return Check("gc", ok=False, detail=f"failed {_ago(runs.failed_at)}: {runs.reason}", hint=hint)


def check_view(objects: ObjectStore) -> Check | None:
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


def check_backlog(objects: ObjectStore, listings: Sequence[Listing]) -> Check:
    """Check which steps of a dump are not in the store, and for how long they could have been ingested."""
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
_NAMED = 4


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
    named = ", ".join(f"{address} ({silent[address]:.0f} s)" for address in longest[:_NAMED])
    more = f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
    hint = (
        "They hang: restart them. Without that, the scheduler gives their tasks to others when it has not "
        f"heard of them for {1.5 * WORKER_TTL_S:.0f} s at most."
    )
    return Check("scheduler", ok=False, detail=f"{detail}; it does not hear of {named}{more}", hint=hint)


def _silent_workers(settings: Settings, client: Client) -> dict[str, float]:
    """Return the workers that the scheduler does not hear of, and for how long, in seconds.

    Raises:
        ClusterError: the scheduler does not have this version of dump-ingest. Then it runs no tasks, either.
    """
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
    """Return the same for a watcher."""
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
    """Return how long ago the process was started, by its own clock."""
    started = metrics.get("process_start_time_seconds", {}).values()
    return _one(metrics, "time_seconds") - min(started, default=0.0)
