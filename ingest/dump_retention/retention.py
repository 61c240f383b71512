"""Deletes the dumps of steps that are in the store: decides, has them read back, and removes their files.

There is no state of its own. What is deleted is not on disk any more; a step of which only a part was deleted
when the process was killed shows as files that the commit of the step has, too, and is gone on with.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ingest.dump_retention.policy import NO_NEWS, RetentionPolicy
from ingest.dump_retention.read_backs import ReadBacks, jobs_of
from ingest.dump_retention.removal import Proven, Removed, cannot_delete, not_writable, remove
from ingest.layouts.base import LayoutPlace, Listing
from ingest.steps.caches import keep_only
from ingest.steps.committed import Committed, comes_from_elsewhere
from ingest.steps.keep_reasons import KeepReason, must_stay
from ingest.watching.watcher import DumpState
from workers.errors import DumpIngestError, StoreError
from workers.events import Event, Observer
from workers.model import SourceFile, StepKey
from workers.store.commit import Commit
from workers.store.model import Origin, StoreAddress
from workers.tasks.read_back import ReadBack, ReadBackJob, ReadBackVerdict

#: Steps whose commits are asked for at once, and that are read back at once.
_BATCH = 16
#: How long to go on with decisions, in seconds: the store is asked for commits, and the watcher waits.
_BEGIN_S = 0.1
#: How long a step is left alone after something went wrong with it: first and longest pause, in seconds.
_PAUSE_S = (60.0, 1800.0)
#: The same where somebody waits for the end, and how often it is tried then.
_SHORT_PAUSE_S = 1.0
_ATTEMPTS = 3
#: Errors that may pass by waiting a little.
_PASSING = ("cluster", "source_changed", "store_unavailable")


@dataclass(frozen=True, slots=True)
class SourceDeleted(Event):
    """Source files were deleted; the commit of their step has every byte of them."""

    key: StepKey
    files: int
    nbytes: int
    seconds: float
    """Since the step was taken up to be read back."""
    dry_run: bool = False
    """Whether they only would have been deleted."""


@dataclass(frozen=True, slots=True)
class SourceKept(Event):
    """Files of a committed step stay in the dump."""

    key: StepKey
    reason: KeepReason
    files: int
    detail: str


@dataclass(frozen=True, slots=True)
class ReadBackFailed(Event):
    """A step could not be read back; nothing of it was deleted."""

    key: StepKey
    error: DumpIngestError
    pause_s: float | None
    """When it is tried again; None for not any more, as long as it stays as it is."""


@dataclass(frozen=True, slots=True)
class RetentionSeen(Event):
    """How much is still to be deleted: told after each look."""

    steps: int
    """Steps that wait to be read back, or are being."""
    nbytes: int


@dataclass(eq=False, slots=True)
class _Step:
    """A step on its way."""

    listing: Listing
    fingerprint: str
    """Of its commit."""
    started: float
    jobs: dict[int, ReadBackJob]
    results: dict[int, ReadBack] = field(default_factory=dict)
    removing: Future[Removed] | None = None

    @property
    def key(self) -> StepKey:
        return self.listing.key

    def proven(self) -> list[Proven]:
        """Return the files of which the store has every byte."""
        return [
            Proven(file, changed_ns)
            for file, verdict, changed_ns in self._files()
            if verdict == ReadBackVerdict.SAME
        ]

    def others(self) -> dict[KeepReason, list[SourceFile]]:
        """Return the files that stay, by reason."""
        found: dict[KeepReason, list[SourceFile]] = {}
        for file, verdict, _ in self._files():
            if verdict != ReadBackVerdict.SAME:
                found.setdefault(_REASONS[ReadBackVerdict(verdict)], []).append(file)
        return found

    def _files(self) -> Iterator[tuple[SourceFile, int, int]]:
        for number, result in sorted(self.results.items()):
            columns = result.verdicts.tolist(), result.changed_ns.tolist()
            yield from zip(self.jobs[number].files, *columns, strict=True)


_REASONS = {
    ReadBackVerdict.NOT_STORED: KeepReason.NOT_STORED,
    ReadBackVerdict.NOT_UNDERSTOOD: KeepReason.NOT_UNDERSTOOD,
}
_WHY = {
    KeepReason.NOT_STORED: "the commit does not have it as it is now",
    KeepReason.NOT_UNDERSTOOD: "what it holds is not understood; the store has it as a file",
}


@dataclass(eq=False, slots=True)
class SourceRetention:
    """Deletes what of one dump is in one store. Called by one thread; files are unlinked in another one.

    Bounds: `_BATCH` steps on their way, and what `ReadBacks` has in flight.
    """

    root: Path
    store: StoreAddress
    committed: Committed
    host: str
    policy: RetentionPolicy
    read_backs: ReadBacks
    patient: bool = False
    """Whether to try again for ever, rather than a few times."""
    dry_run: bool = False
    """Whether to do everything but delete."""
    tell: Observer = lambda _: None
    clock: Callable[[], float] = time.monotonic
    reasons: dict[StepKey, SourceKept] = field(default_factory=dict)
    """Why steps that are on disk, and committed, stay there; as far as is known."""
    _view: DumpState | None = None
    _settled: dict[StepKey, tuple[SourceFile, ...]] = field(default_factory=dict)
    """Steps that stay as long as their files are these."""
    _paused: dict[StepKey, tuple[float, int]] = field(default_factory=dict)
    """Until when a step is left alone, and how often something went wrong with it in a row."""
    _waiting: deque[StepKey] = field(default_factory=deque)
    _steps: dict[StepKey, _Step] = field(default_factory=dict)
    _anomalous: dict[StepKey, tuple[tuple[SourceFile, ...], bool]] = field(default_factory=dict)
    """Whether a step of one rank is anomalous, by the files that it had."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="dump-ingest-delete")
    )

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do for what was seen at the last look."""
        to_try_again = set() if self.patient else self._paused.keys() - self._settled.keys()
        return bool(self._waiting or self._steps or to_try_again)

    @property
    def removing(self) -> frozenset[StepKey]:
        """The steps whose files are being unlinked."""
        return frozenset(key for key, step in self._steps.items() if step.removing is not None)

    def see(self, view: DumpState) -> None:
        """Take note of a look at the dump.

        Raises:
            UsageError: this is the first look, and nothing may be deleted in the dump.
        """
        present = {key: one for key, one in view.present.items() if key.step is not None}
        if self._view is None:
            self._check_writable(present.values())
        self._view = view
        keep_only(present, self._settled, self._paused, self._anomalous, self.reasons)
        for key, step in list(self._steps.items()):
            is_same = key in present and present[key].files == step.listing.files
            if step.removing is None and (key in view.pending or not is_same):
                self._give_up(key)
        newest = self.policy.newest(present)
        self._waiting.clear()
        for key in sorted(present.keys() - view.pending.keys(), key=lambda key: key.order):
            if key in newest:
                self._keep(
                    present[key], KeepReason.NEWEST, f"of the newest {self.policy.keep_last} of its rank"
                )
            elif key not in self._steps and self._is_due(present[key]):
                self._waiting.append(key)
        left = {*self._waiting, *self._steps} & present.keys()
        self.tell(RetentionSeen(len(left), sum(present[key].nbytes for key in left)))

    def drive(self) -> None:
        """Go on with what there is to do. Waits for nothing but the store, when it is asked for commits.

        Raises:
            ClusterError: there is no scheduler.
        """
        for job, result in self.read_backs.drive():
            self._take(job, result)
        for step in list(self._steps.values()):
            self._go_on(step)
        until = self.clock() + _BEGIN_S
        while self._waiting and len(self._steps) < _BATCH and self.read_backs.has_room:
            self._begin([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])
            if self.clock() >= until:
                break

    def close(self) -> None:
        """Stop: what is half deleted is gone on with by whoever looks next."""
        self._stop.set()
        self.read_backs.cancel()
        self._threads.shutdown()

    def _check_writable(self, listings: Iterable[Listing]) -> None:
        directories = [path for listing in listings for path, _ in listing.directories]
        if denied := not_writable(self.root, directories or [""]):
            raise cannot_delete(self.root, denied)

    def _is_due(self, listing: Listing) -> bool:
        if self._settled.get(listing.key) == listing.files:
            return False
        until, _ = self._paused.get(listing.key, (0.0, 0))
        return until <= self.clock()

    def _begin(self, keys: Sequence[StepKey]) -> None:
        """Decide about steps, and have those read back that may go."""
        assert self._view is not None  # noqa: S101 (for mypy)
        listings = [self._view.present[key] for key in keys]
        try:
            found = self._commits(keys)
            decided = [(listing, self._why_kept(listing, found)) for listing in listings]
        except StoreError as exc:
            for listing in listings:
                self._note_failure(listing, exc)
            return
        for listing, why in decided:
            if why is not None:
                self._settle(listing, *why)
                continue
            if denied := not_writable(self.root, [path for path, _ in listing.directories]):
                self._leave_alone(listing, KeepReason.DENIED, cannot_delete(self.root, denied).message)
                continue
            name = found[listing.key].fingerprint
            jobs = jobs_of(listing.key, name, str(self.root), self.store, listing.files)
            step = _Step(listing, name, self.clock(), {job.number: job for job in jobs})
            self._steps[listing.key] = step
            for job in step.jobs.values():
                self.read_backs.offer(job)

    def _commits(self, keys: Sequence[StepKey]) -> dict[StepKey, Commit]:
        """Return the commits of steps, and of the same steps of other ranks where those matter."""
        assert self._view is not None  # noqa: S101 (for mypy)
        if not self.policy.keep_anomalous:
            return self.committed.read(keys)
        steps = {key.step for key in keys}
        present = self._view.present
        # What is pending has no commit, or one of other files: nothing is to be remembered of that.
        unknown = [
            key
            for key in present.keys() - self._view.pending.keys()
            if key.step in steps and self._anomalous.get(key, ((), False))[0] != present[key].files
        ]
        found = self.committed.read(list({*keys, *unknown}))
        for key in unknown:
            self._anomalous[key] = present[key].files, key in found and found[key].summary.is_anomalous
        return found

    def _why_kept(self, listing: Listing, found: Mapping[StepKey, Commit]) -> tuple[KeepReason, str] | None:
        if (why := self._must_stay(listing, found.get(listing.key))) or not self.policy.keep_anomalous:
            return why
        assert self._view is not None  # noqa: S101 (for mypy)
        alike = [key for key in self._view.present if key.step == listing.key.step]
        if late := [key for key in alike if key in self._view.pending]:
            return KeepReason.UNDECIDED, f"{late[0]} is not committed yet; it may have an anomaly"
        bad = [key for key in alike if self._anomalous[key][1]]
        return (KeepReason.ANOMALOUS, f"{bad[0]} has an anomaly") if bad else None

    def _must_stay(self, listing: Listing, found: Commit | None) -> tuple[KeepReason, str] | None:
        why = must_stay(found)
        if why is not None or found is None:
            return why
        origin = Origin(listing.layout, self.host, str(self.root), listing.rank_from)
        elsewhere = comes_from_elsewhere(listing.key, origin, found)
        return (KeepReason.ELSEWHERE, elsewhere.message) if elsewhere else None

    def _take(self, job: ReadBackJob, result: ReadBack | DumpIngestError) -> None:
        """Take what came of a task."""
        step = self._steps.get(job.key)
        if step is None or step.jobs.get(job.number) is not job:
            return
        if isinstance(result, DumpIngestError):
            self._give_up(job.key)
            self._note_failure(step.listing, result)
        else:
            step.results[job.number] = result

    def _go_on(self, step: _Step) -> None:
        """Remove the files of a step that was read back as a whole; note what came of it."""
        if step.removing is None and len(step.results) == len(step.jobs):
            self._remove(step)
        if step.removing is not None and step.removing.done():
            del self._steps[step.key]
            self._note(step, step.removing.result())

    def _remove(self, step: _Step) -> None:
        """Unlink what was found to be in the store, if the commit is still the one that was read back."""
        listing = step.listing
        try:
            found = self.committed.read([step.key]).get(step.key)
        except StoreError as exc:
            self._give_up(step.key)
            self._note_failure(listing, exc)
            return
        if found is None or found.fingerprint != step.fingerprint or self._must_stay(listing, found):
            self._give_up(step.key)  # the next look finds out why
            return
        step.removing = self._threads.submit(
            remove,
            self.root,
            step.proven(),
            listed={file.path for file in listing.files},
            directories={*(path for path, _ in listing.directories), *_step_directories(listing.places)},
            stop=self._stop,
            dry_run=self.dry_run,
        )

    def _note(self, step: _Step, removed: Removed) -> None:
        """Tell what was deleted and what was not."""
        listing, others = step.listing, step.others()
        if removed.files:
            seconds = self.clock() - step.started
            self.tell(SourceDeleted(step.key, removed.files, removed.nbytes, seconds, self.dry_run))
        if removed.stopped:
            return
        if removed.denied:
            self._leave_alone(listing, KeepReason.DENIED, removed.denied)
        elif removed.changed:
            self._leave_alone(listing, KeepReason.CHANGED, f"{removed.changed[0]} is not what was read back")
        else:
            self._paused.pop(step.key, None)
            left = {file.path for files in others.values() for file in files}
            # So the next look will show the step: it is known why.
            self._settled[step.key] = tuple(
                file for file in listing.files if self.dry_run or file.path in left
            )
            for reason, files in others.items():
                self._keep(listing, reason, f"{files[0].path}: {_WHY[reason]}", len(files))

    def _settle(self, listing: Listing, reason: KeepReason, detail: str) -> None:
        if reason is not KeepReason.UNDECIDED:
            self._settled[listing.key] = listing.files
        self._keep(listing, reason, detail)

    def _keep(self, listing: Listing, reason: KeepReason, detail: str, files: int | None = None) -> None:
        """Note why files stay, and tell it if it is news."""
        kept = SourceKept(listing.key, reason, len(listing.files) if files is None else files, detail)
        if self.reasons.get(listing.key) != kept and reason not in NO_NEWS:
            self.tell(kept)
        self.reasons[listing.key] = kept

    def _note_failure(self, listing: Listing, error: DumpIngestError) -> None:
        """Leave a step alone that could not be read back, for a while or for good, and tell it."""
        pause_s = self._pause(listing, final=error.reason not in _PASSING)
        self._keep(listing, KeepReason.READ_BACK_FAILED, error.message)
        self.tell(ReadBackFailed(listing.key, error, pause_s))

    def _leave_alone(self, listing: Listing, reason: KeepReason, detail: str) -> None:
        self._pause(listing, final=False)
        self._keep(listing, reason, detail)

    def _pause(self, listing: Listing, *, final: bool) -> float | None:
        """Return after how many seconds a step is tried again; None where it is given up."""
        attempts = self._paused.get(listing.key, (0.0, 0))[1] + 1
        if not self.patient and (final or attempts >= _ATTEMPTS):
            self._settled[listing.key] = listing.files
            return None
        first, longest = _PAUSE_S if self.patient else (_SHORT_PAUSE_S, _SHORT_PAUSE_S)
        pause_s = float(min(first * 2 ** min(attempts - 1, 10), longest))
        self._paused[listing.key] = (self.clock() + pause_s, attempts)
        return pause_s

    def _give_up(self, key: StepKey) -> None:
        del self._steps[key]
        self.read_backs.drop(key)


def _step_directories(places: Iterable[LayoutPlace]) -> Iterator[str]:
    """Yield the directories that are a step's by name, where its places lie below them: `step8/rank0`."""
    for located in places:
        names = located.place.path.split("/")
        for pattern in located.layout.patterns:
            fields = [pattern.match(level, name) for level, name in enumerate(names[: len(pattern.levels)])]
            if len(names) != len(fields) or len(names) != len(pattern.levels) or None in fields:
                continue
            first = next(
                (n for n, found in enumerate(fields, 1) if found and _STEP & found.keys()), len(names)
            )
            yield from ("/".join(names[:end]) for end in range(first, len(names)))
            break


_STEP = frozenset(["step", "iteration", "previous_step"])
