"""Deletes the dumps of steps that the store has: decides, has them read back, and removes their files.

Nothing but the dump and the store remembers what was deleted. If the process is killed when a part of a step
is deleted, the rest shows as files that the commit of the step has, too, and is deleted by the next process.

Only files that were read back are deleted, only as they were then, and never through a link. Every directory
is opened from the root of the dump on, name by name, without following links; files are examined and unlinked
relative to it. A directory that is replaced by a link to elsewhere is not followed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ingest.dispatch.window import ReadBackQueue, batches
from ingest.dump_retention.policy import NO_NEWS, ReadBackFailed, RetentionSeen, SourceDeleted, SourceJudge
from ingest.layouts.base import Listing, Place
from ingest.steps.events import KeepReason, SourceKept
from ingest.steps.state import DeletionStage, StepState
from workers.dump import paths
from workers.errors import DumpIngestError, SourceDiffers, StoreError, UsageError
from workers.events import Event
from workers.model import MIB, SourceFile, bounded_ns, grouped
from workers.store.model import StoreAddress
from workers.tasks.read_back import ReadBack, ReadBackJob, ReadBackVerdict

_STEP_FIELDS = frozenset(["step", "iteration", "previous_step"])


def step_directories(places: Iterable[Place]) -> Iterator[str]:
    """Yield the directories that are a step's by name, if its places lie below them: `step8/rank0`."""
    for place in places:
        path = place.path
        pattern = next((own for own in place.layout.patterns if own.match_path(path) is not None), None)
        if pattern is not None:
            names = path.split("/")
            named = (pattern.match(level, name) or {} for level, name in enumerate(names))
            levels = (level for level, fields in enumerate(named, 1) if not _STEP_FIELDS.isdisjoint(fields))
            yield from ("/".join(names[:end]) for end in range(next(levels, len(names)), len(names)))


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors that mean: a link or a file is where a directory was, or nothing is.
_SWAPPED = frozenset([errno.ELOOP, errno.ENOTDIR, errno.ENOENT])


@dataclass(frozen=True, slots=True)
class Proven:
    """A file of which the store has every byte."""

    file: SourceFile
    changed_ns: int
    """When its inode had changed last (ctime) when it was compared."""


@dataclass(slots=True)
class Removed:
    """What came of deleting the files of one step."""

    files: int = 0
    nbytes: int = 0
    changed: list[str] = field(default_factory=list)
    """Files and directories that were not as they had been, and stay; the first `_NAMED` of them."""
    denied: str = ""
    """Why the system refused; nothing further was tried after that."""
    stopped: bool = False
    links: set[tuple[int, int]] = field(default_factory=set)
    """Device and inode of files that have other names, of which one was unlinked."""


#: How many paths of changed files are kept.
_NAMED = 20


def remove(
    root: Path,
    proven: Sequence[Proven],
    *,
    listed: Collection[str],
    directories: Iterable[str],
    stop: threading.Event,
    dry_run: bool = False,
) -> Removed:
    """Unlink files of one step, then remove its empty directories. It may be killed at any time.

    Args:
        root: the dump; never removed itself.
        proven: the files, with paths relative to the dump.
        listed: every path of the step that was known when the files were read back. If the step has another
            file by now, nothing is deleted: a file that came late is ingested together with all others.
        directories: the directories of the step, relative to the dump.
        stop: ends it before the next file.
        dry_run: do everything but change the dump.
    """
    removed = Removed()
    by_directory = grouped((paths.relative(member.file.path).rpartition("/")[0], member) for member in proven)
    try:
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        return Removed(denied=f"{root}: {exc.strerror}")
    try:
        if _record_others(root_fd, by_directory, listed, removed):
            return removed
        for directory, members in by_directory.items():
            _unlink_in(root_fd, directory, members, removed, stop, dry_run=dry_run)
            if removed.denied or removed.stopped:
                return removed
        if not dry_run:
            _remove_directories(root_fd, directories)
    finally:
        os.close(root_fd)
    return removed


def _record_others(
    root_fd: int, directories: Iterable[str], listed: Collection[str], removed: Removed
) -> bool:
    for directory in directories:
        try:
            with _opened(root_fd, directory) as fd, os.scandir(fd) as entries:
                names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # what is wrong with it shows when something is to be deleted in it
        present = {f"{directory}/{name}" if directory else name for name in names}
        removed.changed += sorted(present.difference(listed))[:_NAMED]
        if removed.changed:
            return True
    return False


def _unlink_in(
    root_fd: int,
    directory: str,
    members: Sequence[Proven],
    removed: Removed,
    stop: threading.Event,
    *,
    dry_run: bool,
) -> None:
    try:
        with _opened(root_fd, directory) as fd:
            for member in members:
                if stop.is_set():
                    removed.stopped = True
                    return
                _unlink(fd, member, removed, dry_run=dry_run)
    except OSError as exc:
        if exc.errno in _SWAPPED:
            removed.changed.append(directory)
        else:
            removed.denied = f"{directory}: {exc.strerror}"


def _unlink(fd: int, member: Proven, removed: Removed, *, dry_run: bool) -> None:
    name = member.file.path.rpartition("/")[2]
    try:
        now = os.lstat(name, dir_fd=fd)
    except FileNotFoundError:
        return  # somebody else was quicker
    if not is_as_proven(now, member, removed.links):
        if len(removed.changed) < _NAMED:
            removed.changed.append(member.file.path)
        return
    if not dry_run:
        os.unlink(name, dir_fd=fd)
        if now.st_nlink > 1:
            removed.links.add((now.st_dev, now.st_ino))
    removed.files += 1
    removed.nbytes += member.file.size


def is_as_proven(now: os.stat_result, member: Proven, unlinked: Collection[tuple[int, int]]) -> bool:
    """Return whether a file is still the one of which the store has every byte.

    Args:
        now: the present state of the file; a link is not followed.
        member: the file as it was when it was compared.
        unlinked: device and inode of files of which another name was unlinked since: that sets ctime, too.
    """
    return (
        stat.S_ISREG(now.st_mode)
        and (now.st_size, bounded_ns(now.st_mtime_ns)) == (member.file.size, member.file.mtime_ns)
        and (now.st_ctime_ns == member.changed_ns or (now.st_dev, now.st_ino) in unlinked)
    )


def _remove_directories(root_fd: int, directories: Iterable[str]) -> None:
    """Remove directories that are empty, the deepest first. One that is not empty, or is in use, stays."""
    for directory in sorted(set(directories) - {""}, key=lambda path: (-path.count("/"), path)):
        above, _, name = paths.relative(directory).rpartition("/")
        try:
            with _opened(root_fd, above) as fd:
                os.rmdir(name, dir_fd=fd)
        except OSError:
            continue


@contextmanager
def _opened(root_fd: int, directory: str) -> Iterator[int]:
    fd = os.dup(root_fd)
    try:
        for name in directory.split("/") if directory else ():
            below = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def not_writable(root: Path, directories: Iterable[str]) -> str:
    """Return the first of these directories in which this process may not delete; "" if it may in all."""
    for directory in directories:
        path = f"{root}/{directory}"
        if os.path.isdir(path) and not os.access(path, os.W_OK | os.X_OK, effective_ids=True):  # noqa: PTH112
            return directory
    return ""


def cannot_delete(root: Path, directory: str) -> UsageError:
    """Return the error for a dump in which this process is to delete files, and may not."""
    path = root / directory
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        why = "is on a file system that is mounted read-only here"
    else:
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        why = f"belongs to user {status.st_uid} (mode {mode:04o}), and this is user {os.geteuid()}"
    return UsageError(
        f"cannot delete in the dump: {path} {why}",
        hint="Mount it for writing, and run as the user who dumps (docs/retention.md); or keep dumps.",
    )


#: Source bytes of one task, about: what a conversion may have to wait for, and one file at least.
JOB_NBYTES = 256 * MIB
#: Files of one task: their names travel with it.
JOB_FILES = 10_000


@dataclass(eq=False, slots=True)
class _Deletion:
    """The deletion of one step's source files, from the decision that they may go to the last file."""

    state: StepState
    listing: Listing
    """What is read back, and deleted; the step may be listed again meanwhile."""
    fingerprint: str
    started: float
    jobs: dict[int, ReadBackJob]
    verdicts: dict[ReadBackVerdict, list[Proven]] = field(default_factory=lambda: defaultdict(list))
    read_back: set[int] = field(default_factory=set)
    removing: Future[Removed] | None = None

    @property
    def has_changed(self) -> bool:
        """Whether the last scan saw other files, or found the step not to be in the store as it is."""
        listing = self.state.listing
        return listing is None or self.state.is_pending or listing.files != self.listing.files


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
    ReadBackVerdict.NOT_STORED: (KeepReason.NOT_STORED, "the commit does not have it as it is now"),
    ReadBackVerdict.NOT_UNDERSTOOD: (
        KeepReason.NOT_UNDERSTOOD,
        "what it holds is not understood; the store has it as a file",
    ),
}


@dataclass(eq=False, slots=True)
class SourceRetention:
    """Deletes source files whose bytes are committed. Called by one thread; another one unlinks the files.

    Bounds: `_BATCH` steps on their way, and what `read_backs` has in flight.
    """

    judge: SourceJudge
    store: StoreAddress
    read_backs: ReadBackQueue
    retry_forever: bool = False
    dry_run: bool = False
    clock: Callable[[], float] = time.monotonic
    _has_seen: bool = False
    _waiting: deque[StepState] = field(default_factory=deque)
    _under_way: list[_Deletion] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)
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
        while self._waiting and len(self._under_way) < _BATCH and not self.read_backs.waiting:
            self._begin([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])
            if self.clock() >= until:
                break
        return self._take_events()

    def close(self) -> None:
        """Stop. The next run continues with steps that are partly deleted."""
        self._stop.set()
        self.read_backs.drop()
        self._threads.shutdown()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _queue(self, present: Mapping[StepState, Listing]) -> None:
        for state in self._waiting:
            state.deletion.stage = None
        self._waiting.clear()
        newest, now = self.judge.newest(), self.clock()
        for state in sorted(present, key=lambda state: state.key.order):
            listing, deletion = present[state], state.deletion
            if state.is_pending:
                continue
            if state.key in newest:
                self._keep(state, listing, *self.judge.policy.why_newest)
                continue
            is_due = deletion.settled_files != listing.files and deletion.paused_until <= now
            if deletion.stage is None and is_due:
                deletion.stage = DeletionStage.QUEUED
                self._waiting.append(state)

    def _begin(self, states: Iterable[StepState]) -> None:
        states = list(states)
        for state in states:
            state.deletion.stage = None
        try:
            for state, listing, commit, why_kept in self.judge.judge(states):
                if why_kept is not None:
                    if why_kept[0] is not KeepReason.UNDECIDED:
                        state.deletion.settled_files = listing.files
                    self._keep(state, listing, *why_kept)
                elif commit is not None:  # as always then
                    self._read_back(state, listing, commit.fingerprint)
        except StoreError as exc:
            for state in states:
                if state.listing is not None:
                    self._record_failure(state, state.listing, exc)

    def _read_back(self, state: StepState, listing: Listing, name: str) -> None:
        if denied := not_writable(self.judge.root, [path for path, _ in listing.directories]):
            self._leave_alone(
                state, listing, KeepReason.DENIED, cannot_delete(self.judge.root, denied).message
            )
            return
        jobs = {
            number: ReadBackJob(state.key, name, str(self.judge.root), self.store, batch, number)
            for number, batch in enumerate(batches(listing.files, JOB_NBYTES, JOB_FILES))
        }
        self._under_way.append(_Deletion(state, listing, name, self.clock(), jobs))
        state.deletion.stage = DeletionStage.READING_BACK
        self.read_backs.waiting += jobs.values()

    def _collect(self, job: ReadBackJob, result: ReadBack | DumpIngestError) -> None:
        step = next((step for step in self._under_way if step.jobs.get(job.number) is job), None)
        if step is None:
            return
        if isinstance(result, DumpIngestError):
            self._give_up(step)
            self._record_failure(step.state, step.listing, result)
        else:
            step.read_back.add(job.number)
            rows = zip(job.files, result.verdicts.tolist(), result.changed_ns.tolist(), strict=True)
            for file, verdict, changed_ns in rows:
                step.verdicts[ReadBackVerdict(verdict)].append(Proven(file, changed_ns))

    def _advance(self, step: _Deletion) -> None:
        if step.removing is None and step.read_back == step.jobs.keys():
            self._remove(step)
        if step.removing is not None and step.removing.done():
            self._end(step)
            self._record_removed(step, step.removing.result())

    def _remove(self, step: _Deletion) -> None:
        listing = step.listing
        try:
            commit = self.judge.committed.read([listing.key]).get(listing.key)
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
            step.verdicts[ReadBackVerdict.SAME],
            listed={file.path for file in listing.files},
            directories={*(path for path, _ in listing.directories), *step_directories(listing.places)},
            stop=self._stop,
            dry_run=self.dry_run,
        )

    def _record_removed(self, step: _Deletion, removed: Removed) -> None:
        state, listing = step.state, step.listing
        if removed.files:
            seconds = self.clock() - step.started
            deleted = SourceDeleted(listing.key, removed.files, removed.nbytes, seconds, self.dry_run)
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

    def _settle_rest(self, step: _Deletion) -> None:
        """Record why the rest of a step stays, so that the next scan, which shows it, changes nothing."""
        others = {verdict: step.verdicts[verdict] for verdict in _WHY if step.verdicts[verdict]}
        left = {member.file.path for members in others.values() for member in members}
        deletion = step.state.deletion
        deletion.failures, deletion.paused_until = 0, 0.0
        deletion.settled_files = tuple(
            file for file in step.listing.files if self.dry_run or file.path in left
        )
        for verdict, members in others.items():
            reason, why = _WHY[verdict]
            self._keep(step.state, step.listing, reason, f"{members[0].file.path}: {why}", len(members))

    def _keep(
        self, state: StepState, listing: Listing, reason: KeepReason, detail: str, files: int | None = None
    ) -> None:
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
        deletion = state.deletion
        if not self.retry_forever and (final or deletion.failures + 1 >= _ATTEMPTS):
            deletion.settled_files = listing.files
            return None
        first, longest = _PAUSE_S if self.retry_forever else (_SHORT_PAUSE_S, _SHORT_PAUSE_S)
        pause_s = float(min(first * 2 ** min(deletion.failures, 10), longest))
        deletion.failures += 1
        deletion.paused_until = self.clock() + pause_s
        return pause_s

    def _give_up(self, step: _Deletion) -> None:
        self._end(step)
        self.read_backs.drop(lambda job: job.key == step.state.key)

    def _end(self, step: _Deletion) -> None:
        self._under_way.remove(step)
        step.state.deletion.stage = None
