"""Checks of a store that exists: its clock, its consolidated view, gc, and what it lacks of a dump."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import DecodeError
from msgspec import json as typed_json

from ingest.consolidating.lease import LEASE_S, VIEW_LEASE, LeaseRecord
from ingest.doctor.check import Check
from ingest.layouts.base import Listing
from ingest.reader.cubes.consolidated import open_cubes
from ingest.reader.text import counted_steps
from ingest.store_gc.last_run import read_last_runs
from ingest.units import human_bytes
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore

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
