"""Checks of what is asked over the network: the store, the scheduler, and processes that run."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import DecodeError
from msgspec import json as typed_json
from prometheus_client.parser import text_string_to_metric_families

from ingest.consolidating.lease import LEASE_S, VIEW_LEASE, LeaseRecord
from ingest.dispatch.cluster import SAME_VERSION_HINT, Cluster, address_of
from ingest.layouts.base import Listing
from ingest.reader.cubes.consolidated import open_cubes
from ingest.reader.text import counted, counted_steps
from ingest.service.live_watcher import FROM_HINT, process_address
from ingest.settings import Settings
from ingest.store_gc.last_run import read_last_runs
from ingest.units import human_bytes
from workers.errors import ClusterError
from workers.model import StepKey
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
    record = _lease(objects)
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
    missing = _not_committed(objects, keys)
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


def _not_committed(objects: ObjectStore, keys: Sequence[StepKey]) -> set[StepKey]:
    """Return which of these steps, the oldest first, are not committed.

    That the store has anything of a step is taken for its commit, but for the newest: a writer may be at work
    on them, or may have been killed.
    """
    begun = set(commit.list_keys(objects, {key.rank for key in keys}))
    newest = [key for key in keys if key in begun][-_READ:]
    uncommitted = set(newest) - commit.read_records(objects, newest).keys()
    return {key for key in keys if key not in begun} | uncommitted


def _lease(objects: ObjectStore) -> LeaseRecord | None:
    data = objects.get(VIEW_LEASE)
    try:
        return None if data is None else typed_json.decode(data, type=LeaseRecord)
    except (DecodeError, RecursionError, UnicodeDecodeError):
        return None


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


@dataclass(frozen=True, slots=True)
class _Metrics:
    """What a process serves at `/metrics`."""

    values: Mapping[str, list[float]]
    """By name of a series: its values."""
    store: str

    @classmethod
    def parse(cls, text: str) -> _Metrics:
        """Parse a page of metrics.

        Raises:
            ValueError: it is not a page of metrics.
        """
        values: dict[str, list[float]] = {}
        store = ""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values.setdefault(sample.name, []).append(sample.value)
                store = sample.labels.get("store", store)
        return cls(values, store)

    def one(self, name: str) -> float:
        """Return the value of a series of which there is one, or the smallest; 0 if there is none."""
        return min(self.values.get(f"dump_ingest_{name}", ()), default=0.0)

    def total(self, name: str) -> float:
        """Return the sum of several series."""
        return sum(self.values.get(f"dump_ingest_{name}", ()))

    @property
    def role(self) -> str:
        """What the process is; "" for none of ours."""
        roles = {"watcher": "watcher_ranks", "consolidator": "consolidator_lease_held"}
        return next((role for role, name in roles.items() if f"dump_ingest_{name}" in self.values), "")

    @property
    def age_s(self) -> float:
        """How long ago the process was started, by its own clock."""
        return self.one("time_seconds") - min(self.values.get("process_start_time_seconds", (0.0,)))


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
    try:
        status, page = _get(f"{address}{_METRICS}")
        metrics = _Metrics.parse(page if status == http.client.OK else "")
        ready, reason = _get(f"{address}{_READY}")
    except TimeoutError:
        detail = f"{address} accepts connections, and gives no answer in {_ANSWER_S:g} s: it hangs"
        return Check("process", ok=False, detail=detail, hint=_HANGS_HINT)
    except (OSError, http.client.HTTPException) as exc:
        detail = f"nobody answers at {address}: {getattr(exc, 'reason', None) or exc}"
        return Check("process", ok=False, detail=detail, hint=_GONE_HINT)
    except ValueError:
        metrics = _Metrics({}, "")
    if not metrics.role:
        refused = "" if status == http.client.OK else f": it answers {_METRICS} with status {status}"
        detail = f"{address} is not a watcher or consolidator{refused}"
        return Check("process", ok=False, detail=detail, hint=FROM_HINT)
    name = f"{metrics.role} at {address}"
    if ready != http.client.OK:
        hint = "Run `dump-ingest doctor DUMP` as its user: it says what to change."
        return _failure(name, reason.strip(), hint)
    judges: Iterable[Callable[[], Check | None]] = (
        lambda: _hang(name, metrics),
        lambda: _other_store(name, metrics, store),
        lambda: _work(name, metrics, is_view_kept=is_view_kept),
    )
    return next((check for judge in judges if (check := judge())), _success(name, metrics))


def _hang(name: str, metrics: _Metrics) -> Check | None:
    silent_s = metrics.one("time_seconds") - metrics.one("heartbeat_timestamp_seconds")
    if silent_s <= _HANGS_S:
        return None
    return _failure(name, f"has made no progress for {silent_s:.0f} s", _HANGS_HINT)


def _other_store(name: str, metrics: _Metrics, store: str) -> Check | None:
    if not store or metrics.store == store:
        return None
    hint = (
        "Give all processes of a run the same setting `store`, and restart those that have a different one."
    )
    return _failure(name, f"has the store {metrics.store}, and not {store}", hint)


def _work(name: str, metrics: _Metrics, *, is_view_kept: bool) -> Check | None:
    """Return what is wrong with the work of a process that makes progress."""
    if metrics.role == "consolidator":
        is_idle = not metrics.one("consolidator_lease_held") and not is_view_kept
        if not is_idle or metrics.age_s <= _YOUNG_S:
            return None
        hint = (
            f"The store does not exist under its URL, {metrics.store}, or does not answer there: its log "
            "line `waiting` says which. Correct the setting `store`."
        )
        return _failure(name, "holds no lease, and nobody else does", hint)
    if not metrics.one("watcher_last_look_timestamp_seconds"):
        if metrics.age_s <= _YOUNG_S:
            return None
        hint = "Run `dump-ingest doctor DUMP` on its host with its DUMP: it says why that is not a dump."
        return _failure(name, f"has seen no dump since it started {metrics.age_s:.0f} s ago", hint)
    lag_s = metrics.one("time_seconds") - metrics.one("watcher_oldest_pending_timestamp_seconds")
    waiting = int(metrics.total("watcher_pending_steps"))
    if waiting and lag_s > MAX_LAG_S:
        steps = f"{counted(waiting, 'step')} wait{'s' if waiting == 1 else ''}"
        hint = f"Ask why: dump-ingest watch --explain --from {name.rpartition(' ')[2]}"
        return _failure(name, f"{steps} for a commit, the oldest for {lag_s:.0f} s", hint)
    return None


def _success(name: str, metrics: _Metrics) -> Check:
    age_s = metrics.age_s
    detail = f"{name}: makes progress; started {age_s:.0f} s ago"
    hint = (
        "If nobody restarted it, it restarts again and again: look at the end of its log before the last "
        "start. Exit code 137: raise its memory limit."
    )
    return Check("process", ok=True, detail=detail, hint=hint if age_s <= _YOUNG_S else "")


def _failure(name: str, detail: str, hint: str) -> Check:
    return Check("process", ok=False, detail=f"{name}: {detail}", hint=hint)


def _get(address: str) -> tuple[int, str]:
    """Return status and text of a page.

    Raises:
        TimeoutError: no answer came in time.
        OSError: nobody listens.
        HTTPException: what answers does not speak HTTP.
    """
    try:
        with urllib.request.urlopen(address, timeout=_ANSWER_S) as answer:  # noqa: S310 (http or https)
            return int(answer.status), answer.read().decode(errors="replace")
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode(errors="replace")
    except urllib.error.URLError as exc:
        if isinstance(exc.reason, TimeoutError):
            raise exc.reason from exc
        raise
