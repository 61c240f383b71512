"""Everything that is known of one step of a dump, in one record. Its transitions are methods."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ingest.layouts.base import Listing, Problem
from ingest.planning.inspection import Inspected
from ingest.planning.plan import rewritten
from ingest.reader.verifying.verify_listing import ExpectedObjects
from ingest.steps.bad_files import NO_BAD_FILES, BadFiles
from ingest.steps.deletion import Deletion, DeletionStage
from ingest.steps.phases import Cover, Pause, Phase, Wait, WaitFor
from workers.errors import DumpIngestError, StoreUnavailable, UsageError
from workers.model import SourceFile, StepKey
from workers.store.commit import Commit
from workers.tasks.model import StepPlan

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
    """How long that had been at the last scan."""
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
    """Why the step was not complete when it was examined last."""
    bad_files: BadFiles = NO_BAD_FILES

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
    """How long the next pause of run files is."""

    # What becomes of its source, by retention.
    deletion: Deletion | None = None
    """None while nothing is known."""

    @property
    def is_present(self) -> bool:
        """Whether the last scan listed files of the step, or may not list them."""
        return self.listing is not None

    @property
    def is_pending(self) -> bool:
        """Whether the store did not have the step as the last scan saw it."""
        return self.listing is not None and self.held is None

    @property
    def is_left(self) -> bool:
        """Whether the store does not have what can be taken of the step, as it was seen last."""
        if self.listing is None or not self.is_pending or self.is_committed_since_scan:
            return False
        return not self.partial_files or self.partial_files != frozenset(self.listing.files)

    @property
    def is_removing(self) -> bool:
        """Whether its files are being unlinked."""
        deletion = self.deletion
        return deletion is not None and deletion.stage is DeletionStage.REMOVING

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
        """Record what has changed since the listing before."""
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
        self.doubtful = frozenset()
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
        self.bad_files = NO_BAD_FILES
        self.stale = ("", 0)
        self.run_pause_s = _RUN_PAUSE_S[0]
        self.partial_files = frozenset()
        if not self.is_removing:
            self.deletion = None

    def lose_commit(self) -> None:
        """Forget what the store has: when the step comes back, its commit may have been removed meanwhile."""
        self.committed = self.cover = None
        self.is_unchecked = False

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
        """Record the file that the step failed for; return whether it was for a file."""
        bad_files = self.bad_files.with_failure(plan, error)
        if bad_files is self.bad_files:
            return False
        self.bad_files = bad_files
        self.discard_inspection()
        return True

    def learn_poison(self, commit: Commit) -> bool:
        """Take over what an earlier process found to be poison; return whether anything of it was new."""
        files = () if self.listing is None else self.listing.files
        bad_files = self.bad_files.with_commit(files, commit)
        if bad_files is self.bad_files:
            return False
        self.bad_files = bad_files
        self.discard_inspection()
        return True

    def believable(self, error: DumpIngestError) -> DumpIngestError:
        """Return why the step failed: if too many of its files seem to be poison, it is not the files."""
        doubted = self.bad_files.doubts(error)
        if doubted is None:
            return error
        self.bad_files = replace(self.bad_files, poison={})
        return doubted

    # -- on its way

    def offer(self, jobs: int) -> Work:
        """Record that the workers are to convert the step."""
        self.waiting = None
        self.work = Work(jobs)
        return self.work

    def end_work(self) -> None:
        """Record that the workers do nothing more for the step."""
        self.work = None

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

    def end_pause(self) -> None:
        """Leave the step alone no longer, whatever the reason was."""
        self.pause = None

    def retry_with_store(self) -> None:
        """End a pause that was made because the store did not answer."""
        if self.pause is not None and self.pause.for_store:
            self.pause = None

    # -- after its commit

    def for_deletion(self) -> Deletion:
        """Return what is known for deleting its source, to read and to write."""
        if self.deletion is None:
            self.deletion = Deletion()
        return self.deletion
