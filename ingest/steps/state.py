"""Everything that is known of one step of a dump, in one record, and the table of all records.

The transitions of a record are methods of it. The table is the one collection by key, and the only place
that drops a step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ingest.layouts.base import Listing, Problem
from ingest.planning.inspection import Inspected
from ingest.planning.plan import rewritten
from ingest.reader.verifying import ExpectedObjects
from ingest.steps.events import SourceKept
from workers.dump.paths import from_text
from workers.errors import (
    ClusterError,
    DumpIngestError,
    PoisonedFile,
    StoreUnavailable,
    UnreadableFile,
    UsageError,
)
from workers.model import SourceFile, StepKey
from workers.store.commit import Commit
from workers.tasks.model import StepPlan


class Phase(StrEnum):
    """Where a step is on its way from the dump into the store. A closed set: it is part of JSON output."""

    UNLISTED = "unlisted"
    """The store has something of the step and was not asked what; until then its files are not listed."""
    WAITING = "waiting"
    """The step is not complete; see `WaitFor`."""
    DENIED = "denied"
    """Somebody has to grant a permission or to name a rank first."""
    PAUSED = "paused"
    """The step failed, or its run files keep changing; it is left alone for a while."""
    READY = "ready"
    """As far as is known, the step is complete; it waits for its turn."""
    OFFERED = "offered"
    """The step is planned; its tasks wait for room among the bytes in flight."""
    CONVERTING = "converting"
    """Workers convert its files."""
    RETRYING = "retrying"
    """A task of the step failed and waits to be submitted again."""
    PUBLISHING = "publishing"
    """All files are converted; a worker writes index and commit."""
    COMMITTED = "committed"
    """The store has the step as the dump has it."""
    LEFT_OUT = "left_out"
    """The same without the payloads of its tensors, which are left out while the disk is nearly full."""
    KEPT = "kept"
    """The store has more of the step than the dump has by now; the commit stays."""
    REMOVED = "removed"
    """The step was removed from the store on purpose."""
    REFUSED = "refused"
    """The step cannot be taken as it is."""


class WaitFor(StrEnum):
    """What a step waits for before it is offered to the workers."""

    FILES = "files"
    """The first file."""
    TIME = "time"
    """Silence: nothing may have changed for a while."""
    CONTENT = "content"
    """The rest of a file."""
    PERMISSION = "permission"
    """What its `problems` name."""
    LOOK = "look"
    """The next scan of the dump, because something has changed since the last one."""
    STORE = "store"
    """The answer of the store to the question what it has of the step."""
    PAUSE = "pause"
    """The end of a pause."""
    TASKS = "tasks"
    """The end of its own tasks."""
    DELETION = "deletion"
    """The end of the deletion of its files, which the store has."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a step is not offered to the workers now."""

    wait_for: WaitFor
    reason: str
    problems: tuple[Problem, ...] = ()
    """What has to be done first, for `WaitFor.PERMISSION`."""

    @property
    def phase(self) -> Phase:
        """The phase of a step that waits for this."""
        return _PHASES.get(self.wait_for, Phase.WAITING)


_PHASES = {
    WaitFor.PERMISSION: Phase.DENIED,
    WaitFor.STORE: Phase.UNLISTED,
    WaitFor.PAUSE: Phase.PAUSED,
}


@dataclass(frozen=True, slots=True)
class Pause:
    """How long a step, or a task of one, is left alone."""

    until: float
    reason: str
    for_store: bool = False
    """Whether the store did not answer; the pause ends when it answers again."""
    for_person: bool = False
    """Whether somebody has to decide something; the pause ends early if the files of the step change."""


@dataclass(frozen=True, slots=True)
class Cover:
    """A listing for which the commit of the step stands, although it was made from another one."""

    fingerprint: str
    """Of that listing."""
    phase: Phase
    reason: str


#: This many files of a step may be poison. If there are more, it is not the files.
_MAX_POISON = 8
_POISON_HINT = (
    "This many files are hardly all bad: look at the memory of the workers, at their logs, and at the "
    "versions of their libraries. Nothing of the step is visible."
)


class DeletionStage(StrEnum):
    """How far the deletion of a step's files is. A closed set: it is part of JSON output."""

    QUEUED = "queued"
    """It is this step's turn to be decided about, after those before it."""
    READING_BACK = "reading_back"
    """Workers compare the files with the store."""
    REMOVING = "removing"
    """The files are being unlinked, in another thread."""


@dataclass(slots=True)
class Deletion:
    """Whether the source files of one step may go, how far that is, and why they stay if they do."""

    stage: DeletionStage | None = None
    kept: SourceKept | None = None
    """Why files of the step stay, as it was found last."""
    settled_files: tuple[SourceFile, ...] | None = None
    """The step stays as long as these are its files."""
    paused_until: float = 0.0
    failures: int = 0
    judged_files: tuple[SourceFile, ...] | None = None
    has_anomaly: bool = False


#: How often the run files of a rank are committed again while they keep changing: first and longest pause.
_RUN_PAUSE_S = (60.0, 3600.0)
_FAILED_PAUSE_S = 60.0
#: How long a step is left alone about which a person has to decide, unless its files change.
_REFUSED_PAUSE_S = 600.0


@dataclass(slots=True)
class Work:
    """What the workers do for a step that was offered to them."""

    jobs: int
    phase: Phase = Phase.OFFERED
    jobs_done: int = 0
    retry: Pause | None = None
    """When a task that failed is submitted again, and why it failed."""


@dataclass(slots=True, eq=False)
class StepState:
    """What is known of one rank's dump of one step. A cache: a new process finds all of it out again.

    Watcher, store, dispatch, service and retention read and write the same record, in one thread. Other
    threads may read it: each field is replaced as a whole.
    """

    key: StepKey

    # What the dump has, by the scans of the watcher.
    listing: Listing | None = None
    """The step as the last scan saw it; None if it was not listed, or has no files."""
    is_postponed: bool = False
    """Whether it was there at the last scan, which did not list it."""
    is_listing_reusable: bool = False
    """Whether the next scan may use the listing again where no directory has changed."""
    quiet_since: float = 0.0
    """By the monotonic clock: since when the files are as they are."""
    quiet_for_s: float = 0.0
    fingerprint: str = ""
    """Names the generation that the listing makes, if no file of it is bad; "" until the scan asks."""
    rewrites: int = 0
    """How often these files were rewritten with the same sizes and times since they were committed."""
    doubtful: frozenset[str] = frozenset()
    """Paths of files whose inode has changed, and nothing else: their content may be another one."""
    held: Phase | None = None
    """How the store has the step as the last scan saw it; None if it does not: then the step is pending."""
    inspected: Inspected | None = None
    """What the headers of the files say, of this or an earlier listing."""
    waiting: Wait | None = None
    unreadable: frozenset[str] = frozenset()
    """Paths of files that the disk does not give; like `poison`, a new process finds them out again."""
    poison: Mapping[SourceFile, bool] = field(default_factory=dict)
    """Files that kill who reads them, and whether their bytes may be read where nobody decodes them."""

    # What the store has, by `Committed`.
    is_expected: bool = False
    """Whether `Committed.expect` has dealt with the step: it is new otherwise."""
    is_unchecked: bool = False
    """Whether the store has something of the step and is still to be asked what."""
    is_committed_since_scan: bool = False
    """Whether a generation of it was committed since the last scan listed it."""
    partial_files: frozenset[SourceFile] = frozenset()
    """All files of the last commit, if some of them could not be taken. A scan lists such a step as pending
    until it was planned again, which shows that the store has all of it that can be taken."""
    committed: str | None = None
    """The generation that is committed, by its fingerprint without the pool, as far as is known."""
    stored: ExpectedObjects | None = None
    """What a listing has to show of its commit, if it had one when the store was asked first."""
    cover: Cover | None = None
    turn: int = 0
    """Commits are read again in the order of their turns."""

    # What becomes of it, by dispatch and service.
    work: Work | None = None
    """What the workers do for the step; None unless it was offered to them."""
    is_isolated: bool = False
    """Whether workers have died of the step since it was committed last; each of its tasks then runs alone,
    and in a process of its own."""
    stale: tuple[str, int] = ("", 0)
    """How often in a row workers saw other files than this process, and of which generation."""
    pause: Pause | None = None
    run_pause_s: float = _RUN_PAUSE_S[0]

    # What becomes of its source, by retention.
    deletion: Deletion = field(default_factory=Deletion)

    @property
    def is_pending(self) -> bool:
        """Whether the store did not have the step as the last scan saw it."""
        return self.listing is not None and self.held is None

    @property
    def is_left(self) -> bool:
        """Whether the store lacks something of the step that can be taken, as it was seen last."""
        if self.listing is None or self.held or self.is_committed_since_scan or self.key.step is None:
            return False
        return not self.partial_files or self.partial_files != frozenset(self.listing.files)

    @property
    def is_removing(self) -> bool:
        """Whether its files are being unlinked."""
        return self.deletion.stage is DeletionStage.REMOVING

    @property
    def denied(self) -> tuple[Problem, ...]:
        """What somebody has to do before the step can be taken, as it was found last."""
        waiting = self.waiting
        return () if waiting is None else waiting.problems

    # -- what the dump has

    def record_listing(
        self, listing: Listing, *, now: float, reached: float, at_most_s: float = math.inf
    ) -> None:
        """Record the listing of a scan.

        Args:
            listing: of this step; it has files, or a problem that denies it.
            now: the time of the scan by the monotonic clock.
            reached: a Unix time that the clock of the file system has reached. It counts only for a step that
                is seen for the first time: such a step has been quiet since its newest change. From then on
                only what is observed counts.
            at_most_s: how long such a step can have been quiet, whatever that clock says: it was not there
                before.
        """
        before = self.listing
        self.listing = listing
        self.is_committed_since_scan = False
        if before is None:
            self.quiet_for_s = min(max(reached - listing.newest_change, 0.0), at_most_s)
            self.quiet_since = now - self.quiet_for_s
            self.fingerprint = ""
            return
        if before.files is not listing.files:
            self._record_changes(before, listing, now)
        if before.layout != listing.layout:
            self.fingerprint = ""
        self.quiet_for_s = now - self.quiet_since

    def _record_changes(self, before: Listing, listing: Listing, now: float) -> None:
        if before.files == listing.files:
            pairs = zip(before.files, listing.files, strict=True)
            self.doubtful |= {new.path for old, new in pairs if old.version and old.version != new.version}
            return
        self.quiet_since = now
        self.fingerprint = ""
        self.rewrites, self.doubtful = 0, frozenset()
        if self.pause is not None and self.pause.for_person:
            self.pause = None

    def record_rewrites(self, times: int) -> None:
        """Record that the files were rewritten: they make another generation than before."""
        self.rewrites += times
        self.doubtful = frozenset() if times else self.doubtful
        if self.fingerprint:
            self.fingerprint = rewritten(self.fingerprint, times)

    def hold(self, phase: Phase) -> None:
        """Record that the store has the step as it was listed, so that its files are not read."""
        self.held = phase
        self.is_listing_reusable = True
        self.inspected = self.waiting = None

    def await_turn(self, *, is_quiet: bool) -> None:
        """Record that the store does not have the step as it was listed.

        Args:
            is_quiet: whether the step only waits for its turn. Then its listing is used again, or a backlog
                would take long to list. Whoever opens its files, here or in a worker, compares them with it.
        """
        self.held = None
        self.is_listing_reusable = is_quiet

    def lose_files(self) -> None:
        """Forget all but what the store has and what the tasks do: the dump has no files of the step."""
        self.listing = self.held = self.inspected = self.waiting = self.pause = None
        self.is_listing_reusable = False
        self.fingerprint = ""
        self.rewrites, self.doubtful = 0, frozenset()
        self.unreadable, self.poison = frozenset(), {}
        self.stale = ("", 0)
        self.run_pause_s = _RUN_PAUSE_S[0]
        self.partial_files = frozenset()
        if not self.is_removing:
            self.deletion = Deletion()

    def wait(self, wait: Wait) -> None:
        """Record why the step is not complete; the next scan lists it again."""
        self.waiting = wait
        self.is_listing_reusable = False
        if wait.wait_for is WaitFor.PERMISSION:
            self.inspected = None  # a permission that is granted shows in no listing

    def discard_inspection(self) -> None:
        """List the step again and read its headers, whatever was found before."""
        self.is_listing_reusable = False
        self.inspected = None

    def record_bad_file(self, plan: StepPlan, error: DumpIngestError) -> bool:
        """Record the file that the step failed for; return whether it was for a file.

        The step is then planned again without taking the file for a tensor, or without reading it.
        """
        if isinstance(error, UnreadableFile):
            self.unreadable |= {error.path}
        elif isinstance(error, PoisonedFile):
            entries = [entry for entry in plan.entries if entry.source.path == error.path]
            was_decoded = any(entry.header is not None for entry in entries)
            self.poison = {**self.poison, entries[0].source: was_decoded}
        else:
            return False
        self.discard_inspection()
        return True

    def learn_poison(self, commit: Commit) -> bool:
        """Take over what an earlier process found to be poison; return whether anything of it was new.

        A file that was written again since is not bad.
        """
        files = () if self.listing is None else self.listing.files
        recorded = {
            SourceFile(from_text(row.source), row.size, row.mtime_ns): row.bytes_kept
            for row in commit.record.poison
        }
        new = {file: recorded[file] for file in recorded.keys() - self.poison if file in files}
        if new:
            self.poison = {**self.poison, **new}
            self.discard_inspection()
        return bool(new)

    def believable(self, error: DumpIngestError) -> DumpIngestError:
        """Return why the step failed: if too many of its files seem to be poison, it is not the files."""
        if not isinstance(error, PoisonedFile) or len(self.poison) < _MAX_POISON:
            return error
        self.poison = {}
        message = f"{error.message}; and before it {_MAX_POISON} other files of this step"
        return ClusterError(message, hint=_POISON_HINT)

    # -- on its way

    def offer(self, jobs: int) -> Work:
        """Record that the workers are to convert the step."""
        self.waiting = None
        self.work = Work(jobs)
        return self.work

    def record_commit(
        self, fingerprint: str, now: float, partial_files: frozenset[SourceFile] = frozenset()
    ) -> None:
        """Record that this generation was committed. Run files are then left alone, each time for longer.

        Args:
            fingerprint: of the generation.
            now: by the clock of the service.
            partial_files: all files of the step, if some of them could not be taken.
        """
        self.stale = ("", 0)
        self.is_committed_since_scan, self.partial_files = True, partial_files
        if self.fingerprint == fingerprint:
            self.is_listing_reusable = True
        if self.key.step is None:
            self.pause = Pause(now + self.run_pause_s, "run files change as long as the job runs")
            self.run_pause_s = min(self.run_pause_s * 2, _RUN_PAUSE_S[1])

    def record_failure(self, error: DumpIngestError, now: float) -> None:
        """Leave a step alone that failed, for a while."""
        self.stale = ("", 0)
        for_store, for_person = isinstance(error, StoreUnavailable), isinstance(error, UsageError)
        pause_s = _REFUSED_PAUSE_S if for_person else _FAILED_PAUSE_S
        reason = f"{error.message} ({error.hint})" if for_person and error.hint else error.message
        self.pause = Pause(now + pause_s, reason, for_store=for_store, for_person=for_person)

    def record_stale(self, fingerprint: str) -> None:
        """Record that workers saw other files than this generation is made of."""
        self.stale = (fingerprint, self.stale_in_a_row(fingerprint) + 1)
        self.discard_inspection()

    def stale_in_a_row(self, fingerprint: str) -> int:
        """Return how often in a row workers saw other files than this generation is made of."""
        stale, times = self.stale
        return times if stale == fingerprint else 0


class StepTable:
    """One record for each rank and step that a dump has. Bounded by the dump, and the steps under way.

    Written by one thread. Other threads may iterate over it meanwhile: they see the records of one moment.
    """

    def __init__(self) -> None:
        self._states: dict[StepKey, StepState] = {}

    def __iter__(self) -> Iterator[StepState]:
        """Iterate over a copy: listing the values of a dictionary is one operation for other threads."""
        return iter(list(self._states.values()))

    def get(self, key: StepKey) -> StepState | None:
        """Return the record of a step, None if the dump does not have it."""
        return self._states.get(key)

    def ensure(self, key: StepKey) -> StepState:
        """Return the record of a step, a new one if it has none."""
        return self._states.get(key) or self._states.setdefault(key, StepState(key))

    def follow(self, keys: Collection[StepKey]) -> list[StepState]:
        """Have a record for each of these steps, and drop all others; return those that were dropped."""
        present = frozenset(keys)
        dropped = self.forget(present)
        for key in sorted(present - self._states.keys(), key=lambda key: key.order):
            self._states[key] = StepState(key)
        return dropped

    def forget(self, present: Collection[StepKey]) -> list[StepState]:
        """Drop the steps that are not `present` any more; return what was known of them.

        A step for which tasks or a deletion are still under way keeps its record until they have ended, so
        that it is not offered twice if it comes back. Everything else that was known of it is dropped.
        """
        gone = [state for key, state in self._states.items() if key not in present]
        for state in gone:
            state.lose_files()
            # When the step comes back, its commit may have been removed meanwhile.
            state.committed, state.cover, state.is_unchecked = None, None, False
            if state.work is None and not state.is_removing:
                del self._states[state.key]
        return gone
