"""One schedule: its cast is drawn from the seed, played to the end, and judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias
from unittest.mock import patch

from tests.simulation.actors import QUIET, Collector, Consolidator, Job, Reader, Watcher, set_clock
from tests.simulation.choices import Choices
from tests.simulation.cluster import Cluster
from tests.simulation.copies import Believer, Changer, Copier
from tests.simulation.dump import SimulatedDump
from tests.simulation.faults import JUMPS_S, Faults
from tests.simulation.judge import GRACE_S, LATE_AFTER_S, Judge
from tests.simulation.kernel import Kernel, Process, Violation
from tests.simulation.objects import Bucket
from workers.model import StepKey
from workers.store.model import Grid
from workers.store.packed import pool

Cast: TypeAlias = Literal[
    "ingest", "watchers", "delete", "gc", "lease", "all", "pool", "recompress", "copies"
]
#: How often each cast is drawn. Played by their names are `pool`, which is `gc` with ranks that share,
#: `recompress`, which is `pool` with a gc that also encodes steps again, and `copies`, which is `gc` with a
#: consolidator that copies commits.
CASTS: tuple[Cast, ...] = (
    "ingest", "ingest", "ingest", "watchers", "delete", "delete", "gc", "gc", "lease", "lease", "lease", "all"
)  # fmt: skip
#: After this time no more faults begin, and all clocks are right.
_FAULTS_END_S = 200.0
#: In the time of a schedule, in which the grace period is half an hour.
_REUSE_S = 200.0
_SHARING = ("pool", "recompress")
_RATES = (0.0, 0.01, 0.03, 0.1)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is not drawn."""

    cast: Cast | None = None
    """None to draw it."""
    only: frozenset[str] = frozenset()
    """The kinds of faults that may happen; empty for all."""


@dataclass(slots=True)
class World:
    """All that takes part in one schedule."""

    choices: Choices
    setting: Setting = field(default_factory=Setting)
    trace: list[str] | None = None
    kernel: Kernel = field(init=False)
    faults: Faults = field(init=False)
    dump: SimulatedDump = field(init=False)
    bucket: Bucket = field(init=False)
    judge: Judge = field(init=False)
    cast: Cast = field(init=False)
    job: Job | None = None
    watchers: list[Watcher] = field(default_factory=list)
    consolidators: list[Consolidator] = field(default_factory=list)
    collector: Collector | None = None
    changer: Changer | None = None
    believer: Believer | None = None
    _healed_at: float | None = None
    _version: tuple[int, int, int] = (-1, -1, -1)
    """Of dump, store and refusals, when it was found out last what is missing."""
    _late: list[StepKey] = field(default_factory=list)
    _changed_at: float = 0.0
    _at_work_until: float = 0.0

    def __post_init__(self) -> None:
        pick = self.choices.pick
        drawn = CASTS[pick(len(CASTS))]
        self.cast = self.setting.cast or drawn
        self.kernel = Kernel(self.choices, self.trace)
        self.faults = Faults(self.choices, pick(7), _RATES[pick(len(_RATES))])
        self.dump = SimulatedDump(self.kernel)
        self.bucket = Bucket(self.kernel)
        self.judge = Judge(self.kernel, self.dump, self.bucket, QUIET.quiet_s, QUIET.settle_s)
        self.bucket.watches, self.dump.before_unlink = self.judge, self.judge.before_unlink
        if self.cast == "lease":
            self._add_consolidators(2 + pick(2))
        else:
            self._add_ingest()
        if self.cast in ("gc", "all", "copies", *_SHARING):
            self._add_gc()
        if self.cast == "copies":
            self._add_copies()
        self._without()
        if pick(3) == 1:
            self._jump_clocks()

    def run(self) -> None:
        """Play the schedule.

        Raises:
            Violation: an invariant did not hold.
        """
        with patch.object(pool, "REUSE_S", _REUSE_S), patch.object(pool, "GRACE_S", GRACE_S):
            self.kernel.run(self._is_over)

    # -- the cast

    def _add_ingest(self) -> None:
        pick, kernel = self.choices.pick, self.kernel
        process = Process("job", kernel, may_die=False)
        self.job = Job(
            process,
            self.dump,
            self.judge,
            steps=1 + pick(3),
            files=1 + pick(2),
            actions=pick(5) + 3 * (self.cast in _SHARING),
            ranks=2 if self.cast in _SHARING else 1,
        )
        kernel.spawn(self.job.run)
        cluster = Cluster(kernel, self.dump, self.bucket, self.faults, pools=self.cast in _SHARING)
        grid = Grid(job_nbytes=(1000, 60)[pick(2)])
        for number in range(2 if self.cast in ("watchers", "all") else 1):
            watcher = Watcher(
                f"watcher-{number}",
                self.dump,
                self.bucket,
                self.faults,
                cluster,
                self.judge,
                grid,
                deletes=self.cast in ("delete", "all"),
                dump_tells_time=bool(pick(2)),
            )
            self.watchers.append(watcher)
            kernel.spawn(watcher.run)
        for number in range(1 + pick(2)):
            kernel.spawn(partial(cluster.work, f"worker-{number}"))
        if self.cast in ("gc", "watchers", "all", *_SHARING) and pick(2):
            kernel.spawn(Reader(self.bucket, self.dump, self.judge, 6).run)

    def _add_consolidators(self, count: int) -> None:
        for number in range(count):
            consolidator = Consolidator(f"host-{number}", self.bucket, self.faults, self.judge)
            self.consolidators.append(consolidator)
            self.kernel.spawn(consolidator.run)

    def _add_gc(self) -> None:
        self.judge.keep_last = (None, 1)[self.choices.pick(2)]
        recompresses = self.cast == "recompress"
        runs = 1 + self.choices.pick(2) + 2 * recompresses
        self.collector = Collector(self.bucket, self.faults, self.judge, runs, recompresses)
        self.kernel.spawn(self.collector.run)

    def _add_copies(self) -> None:
        pick, only, late = self.choices.pick, self.setting.only, frozenset({"late"})
        # A commit that is changed after gc has removed its step would be half a step.
        without = frozenset[str]() if self.judge.keep_last is None else late
        changing = Faults(self.choices, pick(4), 0.2, without, only=only)
        copying = Faults(self.choices, pick(4), 0.03, late, only=only)
        self.changer = Changer(self.bucket, changing, self.judge, 3 + pick(4))
        self.believer = Believer(self.bucket, self.judge)
        for actor in (self.changer, self.believer, Copier(self.bucket, copying)):
            self.kernel.spawn(actor.run)

    def _without(self) -> None:
        """Leave out kinds of faults that this cast is not made for."""
        without = set()
        if self.cast != "delete":
            without.add("spoiled")  # damage is repaired by `verify --repair`, which takes no part
        self.faults.without, self.faults.only = frozenset(without), self.setting.only

    def _jump_clocks(self) -> None:
        """Have the clock of a host jump, once or twice."""
        hosts, pick = self._hosts(), self.choices.pick
        for _ in range(1 + pick(2)):
            host, at = hosts[pick(len(hosts))], 160.0 * pick(64) / 64
            seconds = JUMPS_S[pick(len(JUMPS_S))]
            self.kernel.call_at(at, partial(self._set_clock, host, seconds))

    def _hosts(self) -> list[Watcher | Consolidator | Collector]:
        """Return those whose wall clocks matter."""
        collectors = [] if self.collector is None else [self.collector]
        return [*self.watchers, *self.consolidators, *collectors]

    def _set_clock(self, host: Watcher | Consolidator | Collector, seconds: float) -> None:
        set_clock(host, seconds)
        if self.trace is not None:
            name = getattr(host, "name", "gc")
            self.trace.append(
                f"{self.kernel.now:9.2f} s  {name:<14} has a clock that is {seconds:+.0f} s off"
            )

    # -- the end

    def _is_over(self) -> bool:
        """Return whether everything is in the store, and nobody has anything left to do.

        Raises:
            Violation: the time for it is over.
        """
        now = self.kernel.now
        if self._healed_at is None and not self._can_be_healed():
            return False
        if self._is_at_work():
            self._at_work_until = now
            return False
        since = self._healed_at or 0.0
        if self.believer is not None:  # what is late shows in other casts
            return self.believer.begun_at > self._at_work_until
        if self.consolidators and self.judge.rounds < since:
            self.judge.check_rounds(since)
            return False
        missing = self._missing()
        if missing and now > max(since, self._changed_at) + LATE_AFTER_S:
            words = [line for watcher in self.watchers for line in watcher.explain()]
            raise Violation(
                "nothing is late",
                f"{missing[0]} is not in the store {LATE_AFTER_S:.0f} s after all faults; {'; '.join(words)}",
            )
        return not missing

    def _is_at_work(self) -> bool:
        """Return whether somebody still removes or changes commits."""
        collects = self.collector is not None and self.collector.runs > self.collector.ended
        changes = self.changer is not None and self.changer.changes > 0
        return bool(self.bucket.late) or collects or changes

    def _missing(self) -> list[StepKey]:
        """Return the steps that are not in the store; the same as before if nothing has changed since."""
        version = self.dump.version, self.bucket.version, len(self.judge.refused)
        if self._version != version:
            self._version, self._changed_at = version, self.kernel.now
            self._late = self.judge.missing()
        return self._late

    def _can_be_healed(self) -> bool:
        """End all faults if the job is over, and the faults are, or all is done that they could hit."""
        is_over = self.kernel.now >= _FAULTS_END_S
        if self.job is None:
            if not is_over:
                return False
        elif not self.job.is_over or (
            self.faults.left and not is_over and self.faults.rate and self._missing()
        ):
            return False
        self._heal()
        return True

    def _heal(self) -> None:
        """End all faults: from here on everything must come to its end."""
        self._healed_at = self.kernel.now
        self.faults.left = 0
        for host in self._hosts():
            set_clock(host, 0.0)
        if self.trace is not None:
            self.trace.append(f"{self.kernel.now:9.2f} s  {'':<14} no more faults")
