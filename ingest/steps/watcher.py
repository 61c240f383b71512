"""The watcher: scans a dump and finds out which steps are complete. No sleeping, no Dask.

File events are its alarm clock: they make it scan early, and are never trusted further.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import watchfiles

from ingest.layouts.base import Beginning, Dump, Listing, Problem
from ingest.planning.inspection import Inspected, inspect
from ingest.planning.plan import fingerprint, rewritten, times_rewritten
from ingest.steps.committed import Committed
from ingest.steps.decide import Inspect, Plan, StepPolicy, decide, held_as, left_alone, waits_for_time
from ingest.steps.state import StepState, StepTable, Wait, WaitFor
from workers.errors import SourceChanged
from workers.events import Event
from workers.model import StepKey
from workers.store.model import Grid

#: By how much the clock of a host may be ahead of a file server's, in seconds: older files are surely old.
MOST_AHEAD_S = 86_400.0

#: Files of one step, of all ranks that are compared before any of them is read.
_COMPARED_FILES = 50_000


def file_system_time(directory: Path) -> float | None:
    """Return the time by the clock of a file system, in seconds since the epoch; None if it does not tell.

    An unnamed file is made for it: it changes no directory, and is gone when this returns. NFS has none, and
    a directory that this process may not write to tells nothing either.
    """
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class QuietClock:
    """The clocks of this process, of its host, and of the file system.

    Times of files are compared only where nothing else is known: a step that is seen for the first time has
    been quiet since its newest change, by the clock of its file system, but at most since the scan at which
    it was not there. From then on only what is observed counts.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    files: Callable[[Path], float | None] = file_system_time

    def reached(self, directory: Path, newest_change: float) -> float:
        """Return a Unix time that the clock of a file system has certainly reached.

        If it does not tell, that is the newest time that it was seen to give a file: what the clock of this
        host says counts only if it is further ahead than it can be wrong. So the last steps of such a dump
        have to be seen to be quiet.

        Args:
            directory: in the file system.
            newest_change: the newest time of all files there that were listed.
        """
        now = self.files(directory)
        if now is not None:
            return now
        wall = self.wall()
        return max(min(newest_change, wall), wall - MOST_AHEAD_S)


@dataclass(frozen=True, slots=True)
class DumpState(Event):
    """What one scan of a dump showed."""

    present: dict[StepKey, Listing]
    pending: dict[StepKey, Listing]
    """Those of `present` that are not committed as they are now, complete or not."""
    problems: tuple[Problem, ...]
    expected_steps: frozenset[int] | None = None
    unlisted: frozenset[StepKey] = frozenset()
    """Steps that were not listed yet, and are neither `present` nor `pending`: the store has something of
    them, and is still to be asked what; or they are `postponed`."""
    expected_ranks: int | None = None
    """How many ranks the rank tables in the dump name; None without a rank table."""
    postponed: frozenset[StepKey] = frozenset()
    """Those of `unlisted` that the next scan lists."""

    @property
    def there(self) -> frozenset[StepKey]:
        """Every step of the dump, listed or not."""
        return self.unlisted.union(self.present)


@dataclass(slots=True)
class Watcher:
    """Scans one dump again and again, and records what it sees in the table."""

    dump: Dump
    grid: Grid
    table: StepTable
    clock: QuietClock = field(default_factory=QuietClock)
    _to_examine: deque[StepState] = field(default_factory=deque)
    """The pending steps of the last scan that were not examined since, in the order of the policy."""

    _scanned_at: float | None = None

    def scan(self, stored: Committed, policy: StepPolicy, *, first_files: int = 0) -> DumpState:
        """List the dump now.

        Args:
            stored: the store.
            policy: in which order steps are taken, and when they are complete.
            first_files: list only the steps that come first, until they have this many files; 0 for all.

        Raises:
            StoreError: the store refused; call again.
        """
        newest_first = policy.order == "newest"
        beginning = Beginning(first_files, newest_first) if first_files else None
        deferred: Collection[StepKey] = ()

        def defer(keys: Collection[StepKey]) -> Collection[StepKey]:
            nonlocal deferred
            deferred = stored.expect(keys)
            return deferred

        reusable = {
            state.key: state.listing for state in self.table if state.listing and state.is_listing_reusable
        }
        scan = self.dump.scan(reusable, defer, beginning)
        # Without files there is nothing to wait for: a job that is killed leaves an empty directory behind.
        present = {
            listing.key: listing
            for listing in scan.listings
            if listing.files or any(problem.denied for problem in listing.problems)
        }
        self._to_examine.clear()
        self._record_listings(present)
        postponed = scan.unlisted.difference(deferred)
        for key in postponed:
            self.table.ensure(key).is_postponed = True
        pending = [
            state for state in self.table if state.listing and not self._compare(state, stored, policy)
        ]
        pending.sort(key=lambda state: state.key.order, reverse=newest_first)
        # What the store is still to be asked for are run files: they are always listed.
        self._to_examine = deque(state for state in pending if not state.is_unchecked)
        problems = [*scan.problems, *(p for listing in scan.listings for p in listing.problems)]
        problems += [problem for state in self.table for problem in state.denied]
        return DumpState(
            present,
            {state.key: present[state.key] for state in pending},
            tuple(dict.fromkeys(problems)),
            scan.expected_steps,
            scan.unlisted,
            scan.expected_ranks,
            postponed,
        )

    def discard_scan(self) -> None:
        """Have `next_complete` return no step of the last scan."""
        self._to_examine.clear()

    def next_complete(self, policy: StepPolicy, now: float) -> StepState | None:
        """Return another complete step of the last scan, inspected; None if none is left.

        Files are opened only here, so a large backlog is inspected little by little. A step that is left
        alone for now is passed over.
        """
        while self._to_examine:
            state = self._to_examine.popleft()
            if not state.is_pending or left_alone(state, now):
                continue
            wait = self._examine(state, policy, now)
            if wait is None:
                state.waiting = None
                return state
            state.wait(wait)
        return None

    def complete_ranks(self, key: StepKey, policy: StepPolicy, now: float) -> list[Inspected]:
        """Return the step of a rank, and the same step of other ranks that `next_complete` will return next.

        Memory: the contents of the headers of `_COMPARED_FILES` files; further ranks are left out.
        """
        found = [state.inspected for state in (self.table.get(key),) if state and state.inspected]
        files = sum(len(inspected.listing.files) for inspected in found)
        for state in takewhile(lambda state: state.key.step == key.step, self._to_examine):
            files += len(state.listing.files) if state.listing else 0
            if files > _COMPARED_FILES:
                break
            if state.is_pending and not left_alone(state, now) and self._examine(state, policy, now) is None:
                found += [state.inspected] if state.inspected else []
        return found

    def _record_listings(self, present: dict[StepKey, Listing]) -> None:
        now = self.clock.monotonic()
        # When a step is listed first, only the times of files tell for how long it has been quiet. One that
        # was not there at the scan before has come since, however wrong the clocks of host and disk are.
        since_last_s = math.inf if self._scanned_at is None else now - self._scanned_at
        states = [(self.table.ensure(key), listing) for key, listing in present.items()]
        reached = 0.0
        if not all(state.listing for state, _ in states):
            newest_change = max(listing.newest_change for listing in present.values())
            reached = self.clock.reached(self.dump.root, newest_change)
        for state, listing in states:
            at_most_s = math.inf if state.is_postponed else since_last_s
            state.is_postponed = False
            state.record_listing(listing, now=now, reached=reached, at_most_s=at_most_s)
        self._scanned_at = now
        for state in self.table:
            if state.key not in present:
                state.lose_files()

    def _compare(self, state: StepState, stored: Committed, policy: StepPolicy) -> bool:
        listing = state.listing
        if listing is None or state.is_unchecked:
            state.held = None
            return False
        if not state.fingerprint:
            name = fingerprint(listing.files, listing.naming, self.grid)
            state.fingerprint = rewritten(name, state.rewrites)
            # An earlier process may have found the files rewritten with the same sizes and times.
            if state.committed not in (None, state.fingerprint):
                state.record_rewrites(times_rewritten(state.fingerprint, state.committed or ""))
        phase = held_as(state, policy, lambda name: stored.was_removed(state.key, name))
        if phase is not None:
            state.hold(phase)
            return True
        waits = listing.key.step is None or waits_for_time(listing, state.quiet_for_s, policy.completeness)
        state.await_turn(is_quiet=not waits)
        return False

    def _examine(self, state: StepState, policy: StepPolicy, now: float) -> Wait | None:
        """Read the headers of a step if it is time to; return why it is not complete, None if it is."""
        decision = decide(state, policy, now)
        if isinstance(decision, Inspect) and (listing := state.listing):
            described = self.dump.describe(listing)
            try:
                state.inspected = inspect(self.dump.root, listing, described, state.unreadable, state.poison)
            except SourceChanged as exc:
                return Wait(WaitFor.LOOK, exc.message)
            decision = decide(state, policy, now)
        assert isinstance(decision, Wait | Plan)  # noqa: S101 (for mypy: it is pending, and was inspected)
        return decision if isinstance(decision, Wait) else None


#: Watching 10,000 directories takes 0.8 s to set up, in which no other thread of the process runs: what the
#: dump has at the start comes first. Until then, and on file systems without events, polling goes on.
_AFTER_S = 5.0
#: How long changes are gathered, and how often it is looked whether there are any, in milliseconds.
_GATHER_MS, _LOOK_MS = 250, 200
#: File systems of this machine: its kernel hears of each change, whoever makes it.
_LOCAL = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "zfs"])


@contextmanager
def watch_events(root: Path, on_change: Callable[[], object], hears_all: threading.Event) -> Iterator[None]:
    """Call `on_change` soon after something below `root` changes, where the file system reports it.

    `hears_all` is set for as long as every change is reported. Network file systems, exhausted watches and
    unreadable directories report nothing: polling goes on.
    """
    stop = threading.Event()

    def listen() -> None:
        if stop.wait(_AFTER_S):
            return
        is_local = file_system_of(root, Path("/proc/self/mountinfo").read_text(errors="replace")) in _LOCAL
        events = watchfiles.watch(
            root,
            stop_event=stop,
            debounce=_GATHER_MS,
            step=_LOOK_MS,
            rust_timeout=1000,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        try:
            for number, changes in enumerate(events):
                if is_local:
                    hears_all.set()
                if changes or not number:  # what came before the watches were set up was not heard of
                    on_change()
        except (OSError, RuntimeError):  # too many watches: events are only a convenience
            return
        finally:
            hears_all.clear()

    thread = threading.Thread(target=listen, name="file-events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=2)


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that has a path; "" if it is not known.

    Args:
        path: the path.
        mounts: the text of /proc/self/mountinfo, see proc_pid_mountinfo(5).
    """
    places = {".": ""}
    for line in mounts.splitlines():
        mounted, _, source = line.partition(" - ")
        if len(fields := mounted.split(" ")) > _MOUNT_POINT:
            # Spaces and such in it are octal; a later mount hides an earlier one.
            place = fields[_MOUNT_POINT].encode().decode("unicode_escape")
            places[place] = source.partition(" ")[0]
    resolved = path.resolve()
    return next((places[str(above)] for above in (resolved, *resolved.parents) if str(above) in places), "")


_MOUNT_POINT = 4
