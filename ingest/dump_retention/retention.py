"""Deletes the dumps of steps that the store has: decides, has them read back, and removes their files.

Nothing but the dump and the store remembers what was deleted. If the process is killed when a part of a step
is deleted, the rest shows as files that the commit of the step has, too, and is deleted by the next process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from ingest.dispatch.clients import TaskClient, shares_of, submit
from ingest.dispatch.window import TaskMonitor, TaskWindow, batches
from ingest.dump_retention.policy import (
    NO_NEWS,
    Judged,
    ReadBackFailed,
    RetentionSeen,
    SourceDeleted,
    SourceJudge,
)
from ingest.dump_retention.removal import (
    Proven,
    Removed,
    cannot_delete,
    not_writable,
    remove,
    step_directories,
)
from ingest.layouts.base import Listing
from ingest.steps.events import SourceKept
from ingest.steps.keeping import KeepReason
from ingest.steps.state import DeletionStage, StepState
from workers.errors import DumpIngestError, SourceDiffers, StoreError
from workers.events import Event
from workers.model import MIB, SourceFile, StepKey
from workers.store.model import StoreAddress
from workers.tasks import run as tasks
from workers.tasks.read_back import ReadBack, ReadBackJob, ReadBackVerdict

#: Source bytes of one task, about: what a conversion may have to wait for, and one file at least.
JOB_NBYTES = 256 * MIB
#: Files of one task: their names travel with it.
JOB_FILES = 10_000
#: Tasks in flight at once.
_AT_ONCE = 8
#: Dask runs tasks of a higher priority first; conversions have 0.
_PRIORITY = -10


class ReadBacks:
    """Runs jobs on a cluster. Single-threaded: all methods are called by one thread.

    In flight are at most eight tasks, and `inflight_nbytes` of source bytes; a single larger task goes alone.
    """

    def __init__(
        self,
        client: Callable[[], TaskClient],
        inflight_nbytes: int,
        resources: Mapping[str, float] | None = None,
        monitor: TaskMonitor | None = None,
    ) -> None:
        """Remember where to run; nothing is submitted yet.

        Args:
            client: returns a connected client, a new one if the last was lost, or raises ClusterError.
            inflight_nbytes: source bytes of the tasks in flight.
            resources: what a worker must offer to be given a task, as Dask counts resources.
            monitor: looks after tasks that take long.
        """
        self._connect = client
        self._resources = shares_of(resources or {})
        self._waiting: deque[ReadBackJob] = deque()
        self._window: TaskWindow[ReadBackJob] = TaskWindow(
            _AT_ONCE, inflight_nbytes, lambda job: str(job.key), monitor or TaskMonitor()
        )
        self._client: TaskClient | None = None

    @property
    def has_room(self) -> bool:
        """Whether everything that was offered has been submitted."""
        return not self._waiting

    def offer(self, job: ReadBackJob) -> None:
        """Take on a job; `poll` returns its result, once."""
        self._waiting.append(job)

    def poll(self) -> list[tuple[ReadBackJob, ReadBack | DumpIngestError]]:
        """Submit what fits, and return the jobs that have ended. Does not wait.

        Raises:
            ClusterError: the scheduler is missing. Everything stays as it is; call again later.
        """
        if not self._waiting and not self._window.jobs:
            return []
        client = self._connect()
        if client is not self._client:
            self._waiting.extendleft(self._window.clear())  # lost with their client
            self._client = client
        results = self._window.ended(client)
        while self._waiting and self._window.has_room(self._waiting[0].nbytes):
            self._submit(client, self._waiting.popleft())
        return results

    def drop(self, key: StepKey) -> None:
        """Forget the jobs of a step."""
        self._waiting = deque(job for job in self._waiting if job.key != key)
        self._window.drop(lambda job: job.key == key)

    def cancel(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._window.drop(lambda _: True)

    def _submit(self, client: TaskClient, job: ReadBackJob) -> None:
        place = f"{job.key.rank}-{job.key.step}-{job.number}-{time.time_ns()}"
        future = submit(
            client,
            tasks.run_read_back,
            tasks.pack_read_back(job),
            key=f"read-back-0{job.fingerprint[:15]}-{place}",
            priority=_PRIORITY,
            resources=self._resources,
        )
        self._window.add(future, job, job.nbytes)


_REASONS = {
    ReadBackVerdict.NOT_STORED: KeepReason.NOT_STORED,
    ReadBackVerdict.NOT_UNDERSTOOD: KeepReason.NOT_UNDERSTOOD,
}


@dataclass(eq=False, slots=True)
class StepDeletion:
    """The deletion of one step's source files, from the decision that they may go to the last file."""

    state: StepState
    listing: Listing
    """What is read back, and deleted; the step may be listed again meanwhile."""
    fingerprint: str
    """Of its commit."""
    started: float
    jobs: dict[int, ReadBackJob]
    results: dict[int, ReadBack] = field(default_factory=dict)
    removing: Future[Removed] | None = None

    @property
    def key(self) -> StepKey:
        """Rank and step."""
        return self.state.key

    @property
    def is_read_back(self) -> bool:
        """Whether all of its files were read back."""
        return len(self.results) == len(self.jobs)

    @property
    def has_changed(self) -> bool:
        """Whether the last scan saw other files, or found the step not to be in the store as it is."""
        listing = self.state.listing
        return listing is None or self.state.is_pending or listing.files != self.listing.files

    def proven(self) -> list[Proven]:
        """Return the files of which the store has every byte."""
        return [
            Proven(file, changed_ns)
            for file, verdict, changed_ns in self._files()
            if verdict == ReadBackVerdict.SAME
        ]

    def others(self) -> dict[KeepReason, list[SourceFile]]:
        """Return the files that stay, by reason."""
        others: dict[KeepReason, list[SourceFile]] = {}
        for file, verdict, _ in self._files():
            if verdict != ReadBackVerdict.SAME:
                others.setdefault(_REASONS[ReadBackVerdict(verdict)], []).append(file)
        return others

    def _files(self) -> Iterator[tuple[SourceFile, int, int]]:
        for number, result in sorted(self.results.items()):
            columns = result.verdicts.tolist(), result.changed_ns.tolist()
            yield from zip(self.jobs[number].files, *columns, strict=True)


#: Steps whose commits are asked for at once, and that are read back at once.
_BATCH = 16
#: How long to go on with decisions, in seconds: the store is asked for commits, and the watcher waits.
_BEGIN_S = 0.1
#: How long a step is left alone after something went wrong with it: first and longest pause, in seconds.
_PAUSE_S = (60.0, 1800.0)
#: The same if somebody waits for the end, and how often it is tried then.
_SHORT_PAUSE_S = 1.0
_ATTEMPTS = 3
#: Errors that may pass by waiting a little.
_PASSING = ("cluster", "source_changed", "store_unavailable")
_WHY = {
    KeepReason.NOT_STORED: "the commit does not have it as it is now",
    KeepReason.NOT_UNDERSTOOD: "what it holds is not understood; the store has it as a file",
}


@dataclass(eq=False, slots=True)
class SourceRetention:
    """Deletes source files whose bytes are committed. Called by one thread; another one unlinks the files.

    Bounds: `_BATCH` steps on their way, and what `ReadBacks` has in flight.
    """

    judge: SourceJudge
    store: StoreAddress
    read_backs: ReadBacks
    retry_forever: bool = False
    """Whether to try for ever, rather than a few times."""
    dry_run: bool = False
    """Whether to do everything but delete."""
    clock: Callable[[], float] = time.monotonic
    _has_seen: bool = False
    _waiting: deque[StepState] = field(default_factory=deque)
    """Steps to decide about, oldest first."""
    _under_way: list[StepDeletion] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)
    """What is still to be reported."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="dump-ingest-delete")
    )

    @property
    def busy(self) -> bool:
        """Whether any work is left for the steps of the last scan."""
        if self._waiting or self._under_way:
            return True
        deletions = (state.deletion for state in self.judge.table)
        return not self.retry_forever and any(
            deletion.failures and deletion.settled_files is None for deletion in deletions
        )

    def follow_scan(self) -> list[Event]:
        """Take over what the table has since the last scan of the dump; return what there is to report.

        Raises:
            UsageError: this is the first scan, and nothing may be deleted in the dump.
        """
        present = {
            state: state.listing for state in self.judge.table if state.listing and state.key.step is not None
        }
        if not self._has_seen:
            directories = [path for listing in present.values() for path, _ in listing.directories]
            if denied := not_writable(self.judge.root, directories or [""]):
                raise cannot_delete(self.judge.root, denied)
        self._has_seen = True
        for step in [step for step in self._under_way if step.removing is None and step.has_changed]:
            self._give_up(step)
        self._queue(present)
        left = {*self._waiting, *(step.state for step in self._under_way)}
        listings = [state.listing for state in left if state.listing is not None]
        self._events.append(RetentionSeen(len(listings), sum(listing.nbytes for listing in listings)))
        return self._take_events()

    def poll(self) -> list[Event]:
        """Go on with what there is to do, and return what there is to report.

        Waits for nothing but the store, when it is asked for commits.

        Raises:
            ClusterError: the scheduler does not answer.
        """
        for job, result in self.read_backs.poll():
            self._collect(job, result)
        for step in list(self._under_way):
            self._advance(step)
        until = self.clock() + _BEGIN_S
        while self._waiting and len(self._under_way) < _BATCH and self.read_backs.has_room:
            self._begin([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])
            if self.clock() >= until:
                break
        return self._take_events()

    def close(self) -> None:
        """Stop. The next run continues with steps that are partly deleted."""
        self._stop.set()
        self.read_backs.cancel()
        self._threads.shutdown()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _queue(self, present: Mapping[StepState, Listing]) -> None:
        """Queue the steps that the store holds and that are not on their way, but for the newest."""
        for state in self._waiting:
            state.deletion.stage = None
        self._waiting.clear()
        newest, now = self.judge.newest(), self.clock()
        for state in sorted(present, key=lambda state: state.key.order):
            listing, deletion = present[state], state.deletion
            if state.is_pending:
                continue
            if state.key in newest:
                self._keep(state, listing, *self.judge.policy.why_newest())
                continue
            is_due = deletion.settled_files != listing.files and deletion.paused_until <= now
            if deletion.stage is None and is_due:
                deletion.stage = DeletionStage.QUEUED
                self._waiting.append(state)

    def _begin(self, states: Iterable[StepState]) -> None:
        """Decide about steps, and have those read back that may go."""
        states = list(states)
        for state in states:
            state.deletion.stage = None
        try:
            for judged in self.judge.judge(states):
                self._begin_step(judged)
        except StoreError as exc:
            for state in states:
                if state.listing is not None:
                    self._record_failure(state, state.listing, exc)

    def _begin_step(self, judged: Judged) -> None:
        state, listing, commit = judged.state, judged.listing, judged.commit
        if judged.why_kept is not None:
            self._settle(state, listing, *judged.why_kept)
            return
        assert commit is not None  # noqa: S101 (for mypy: a step without a commit must stay)
        if denied := not_writable(self.judge.root, [path for path, _ in listing.directories]):
            self._leave_alone(
                state, listing, KeepReason.DENIED, cannot_delete(self.judge.root, denied).message
            )
            return
        name, root = commit.fingerprint, str(self.judge.root)
        jobs = {
            number: ReadBackJob(state.key, number, name, root, self.store, batch)
            for number, batch in enumerate(batches(listing.files, JOB_NBYTES, JOB_FILES))
        }
        step = StepDeletion(state, listing, name, self.clock(), jobs)
        self._under_way.append(step)
        state.deletion.stage = DeletionStage.READING_BACK
        for job in step.jobs.values():
            self.read_backs.offer(job)

    def _collect(self, job: ReadBackJob, result: ReadBack | DumpIngestError) -> None:
        """Collect what came of a task; nothing, if its step was given up meanwhile."""
        step = next((step for step in self._under_way if step.jobs.get(job.number) is job), None)
        if step is None:
            return
        if isinstance(result, DumpIngestError):
            self._give_up(step)
            self._record_failure(step.state, step.listing, result)
        else:
            step.results[job.number] = result

    def _advance(self, step: StepDeletion) -> None:
        """Remove the files of a step that was read back as a whole, and record the outcome."""
        if step.removing is None and step.is_read_back:
            self._remove(step)
        if step.removing is not None and step.removing.done():
            self._end(step)
            self._record_removed(step, step.removing.result())

    def _remove(self, step: StepDeletion) -> None:
        """Unlink what was found to be in the store, if the commit is still the one that was read back."""
        listing = step.listing
        try:
            commit = self.judge.committed.read([step.key]).get(step.key)
        except StoreError as exc:
            self._give_up(step)
            self._record_failure(step.state, listing, exc)
            return
        if not self.judge.may_go(listing, commit, step.fingerprint):
            self._give_up(step)  # the next scan finds out why
            return
        step.state.deletion.stage = DeletionStage.REMOVING
        step.removing = self._threads.submit(
            remove,
            self.judge.root,
            step.proven(),
            listed={file.path for file in listing.files},
            directories={*(path for path, _ in listing.directories), *step_directories(listing.places)},
            stop=self._stop,
            dry_run=self.dry_run,
        )

    def _record_removed(self, step: StepDeletion, removed: Removed) -> None:
        """Report what was deleted and what was not."""
        state, listing = step.state, step.listing
        if removed.files:
            seconds = self.clock() - step.started
            deleted = SourceDeleted(step.key, removed.files, removed.nbytes, seconds, self.dry_run)
            self._events.append(deleted)
        if removed.stopped:
            return
        if removed.denied:
            self._leave_alone(state, listing, KeepReason.DENIED, removed.denied)
        elif removed.changed:
            detail = f"{removed.changed[0]} is not what was read back"
            self._leave_alone(state, listing, KeepReason.CHANGED, detail)
        else:
            self._settle_rest(step)

    def _settle_rest(self, step: StepDeletion) -> None:
        """Record why the rest of a step stays, so that the next scan, which shows it, changes nothing."""
        others = step.others()
        left = {file.path for files in others.values() for file in files}
        deletion = step.state.deletion
        deletion.failures, deletion.paused_until = 0, 0.0
        deletion.settled_files = tuple(
            file for file in step.listing.files if self.dry_run or file.path in left
        )
        for reason, files in others.items():
            self._keep(step.state, step.listing, reason, f"{files[0].path}: {_WHY[reason]}", len(files))

    def _settle(self, state: StepState, listing: Listing, reason: KeepReason, detail: str) -> None:
        if reason is not KeepReason.UNDECIDED:
            state.deletion.settled_files = listing.files
        self._keep(state, listing, reason, detail)

    def _keep(
        self, state: StepState, listing: Listing, reason: KeepReason, detail: str, files: int | None = None
    ) -> None:
        """Record why files stay, and report it if it is news."""
        kept = SourceKept(state.key, reason, len(listing.files) if files is None else files, detail)
        if state.deletion.kept != kept and reason not in NO_NEWS:
            self._events.append(kept)
        state.deletion.kept = kept

    def _record_failure(self, state: StepState, listing: Listing, error: DumpIngestError) -> None:
        """Leave a step alone that could not be read back, for a while or for good, and report it."""
        if isinstance(error, SourceDiffers):  # then it is read again, and taken as it is now
            state.doubtful |= {file.path for file in listing.files}
        pause_s = self._pause(state, listing, final=error.reason not in _PASSING)
        self._keep(state, listing, KeepReason.READ_BACK_FAILED, error.message)
        self._events.append(ReadBackFailed(state.key, error, pause_s))

    def _leave_alone(self, state: StepState, listing: Listing, reason: KeepReason, detail: str) -> None:
        self._pause(state, listing, final=False)
        self._keep(state, listing, reason, detail)

    def _pause(self, state: StepState, listing: Listing, *, final: bool) -> float | None:
        """Return after how many seconds a step is tried again; None if it is given up."""
        deletion = state.deletion
        if not self.retry_forever and (final or deletion.failures + 1 >= _ATTEMPTS):
            deletion.settled_files = listing.files
            return None
        first, longest = _PAUSE_S if self.retry_forever else (_SHORT_PAUSE_S, _SHORT_PAUSE_S)
        pause_s = float(min(first * 2 ** min(deletion.failures, 10), longest))
        deletion.failures += 1
        deletion.paused_until = self.clock() + pause_s
        return pause_s

    def _give_up(self, step: StepDeletion) -> None:
        self._end(step)
        self.read_backs.drop(step.key)

    def _end(self, step: StepDeletion) -> None:
        self._under_way.remove(step)
        step.state.deletion.stage = None
