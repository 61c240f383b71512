"""Who takes part besides the workers: the job, watchers, consolidators, gc and readers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ingest.consolidating.lease import Lease, LeaseHeld
from ingest.dispatch.submitter import DispatchLimits, StepFailed
from ingest.dump_retention.policy import RetentionPolicy
from ingest.service.offering import ServiceOptions
from ingest.service.service import Service
from ingest.steps.committed import FilesNotTaken
from ingest.steps.decide import CompletenessPolicy, StepPolicy, explain_table
from ingest.steps.watcher import QuietClock
from ingest.store_gc.execute import Execution
from ingest.store_gc.plan import GcPolicy, make_plan, take_inventory
from tests.simulation.cluster import Client, Cluster, FinishedTasks, read_generation
from tests.simulation.dump import Content, DumpView, SimulatedDump
from tests.simulation.faults import Faults
from tests.simulation.judge import CUBES, GRACE_S, LEASE, Judge
from tests.simulation.kernel import EPOCH, Killed, Process, Violation
from tests.simulation.objects import Bucket, SimulatedObjects
from tests.simulation.seams import DeletingThread, SimulatedProbe
from workers.errors import DamagedStore, StoreError, UsageError
from workers.events import Event
from workers.model import StepKey
from workers.store import commit
from workers.store.model import Grid
from workers.store.packed.recompressing import recompress

if TYPE_CHECKING:
    from distributed import Client as DaskClient

QUIET = CompletenessPolicy(quiet_s=10.0, settle_s=1.0)
#: A watcher that sees no change looks less and less often, so that idle time costs no steps.
_IDLE_S = (2.0, 400.0)
_BUSY_S = 20.0
_RESTART_S = 2.0
#: How long a task may run: longer than a worker stands still.
TASK_TIMEOUT_S = 120.0
_PAUSES_S = (0.2, 3.0, 14.0, 75.0)


@dataclass(slots=True)
class Job:
    """Writes files: steps, the same again, in place, halves, and what comes late."""

    process: Process
    dump: SimulatedDump
    judge: Judge
    steps: int
    files: int
    actions: int
    ranks: int = 1
    is_over: bool = False
    _next_step: int = 0
    _versions: int = 0

    def run(self) -> None:
        """Do some things, with pauses."""
        pick = self.process.kernel.choices.pick
        do = (
            self._dump_next,
            self._rewrite,
            self._dump_again,
            self._crash,
            self._remove_step,
            self._add_late,
        )
        self._dump_next()
        for _ in range(self.actions):
            self.process.sleep(_PAUSES_S[pick(len(_PAUSES_S))])
            do[pick(len(do))]()
        self.is_over = True

    def _some_step(self) -> StepKey | None:
        present = self.dump.present()
        return present[self.process.kernel.choices.pick(len(present))] if present else None

    def _dump_next(self) -> None:
        step, rank = divmod(self._next_step, self.ranks)
        key = StepKey(rank, step)
        self._next_step = (self._next_step + 1) % (self.steps * self.ranks)
        directory = f"{rank}/{step}" if rank else f"{step}"
        self._dump_step(key, [f"{directory}/{number}" for number in range(self.files)])

    def _dump_step(self, key: StepKey, paths: list[str]) -> None:
        self.judge.newest_begun = max(self.judge.newest_begun, key.step or 0)
        for path in paths:
            self._write(key, path)

    def _write(self, key: StepKey, path: str, *, whole: bool = True) -> None:
        """Write a file at once, or in two parts, or under another name first."""
        self._versions += 1
        content = Content(self._versions, is_whole=True)
        how = self.process.kernel.choices.pick(3) if whole else 1
        self.process.step()
        self.process.note(f"writes {path}{('', ' in two parts', ' and renames it')[how]}")
        if how == 1:
            self.dump.write(key, path, content._replace(is_whole=False))
            if not whole:
                return
            self.process.sleep(0.3)
            self.dump.write(key, path, content)
        elif how == 2:
            self.dump.write(key, f"{path}.part", content)
            self.process.step()
            self.dump.rename(key, f"{path}.part", path)
        else:
            self.dump.write(key, path, content)

    def _rewrite(self) -> None:
        """Write a file again, in place: with the same size, and a new time."""
        if key := self._some_step():
            self._write(key, min(self.dump.files[key]))

    def _dump_again(self) -> None:
        """Remove a step, and dump it again, as after a restart from a checkpoint; maybe fewer files of it."""
        key, pick = self._some_step(), self.process.kernel.choices.pick
        if key is None:
            return
        before = sorted(self.dump.files[key])
        self._remove(key)
        self.process.sleep(0.3)
        if pick(2):
            before = [f"{path}+" for path in before]
        if pick(2):
            before = before[1:]
        self._dump_step(key, before)

    def _crash(self) -> None:
        """Stop in the middle of a file; the rest comes after a restart, or never."""
        if key := self._some_step():
            self._write(key, f"{key.step}/torn", whole=False)
            self.process.sleep(_PAUSES_S[self.process.kernel.choices.pick(len(_PAUSES_S))])
            if self.process.kernel.choices.pick(2):
                self._write(key, f"{key.step}/torn")

    def _remove_step(self) -> None:
        """Remove a step, as a job does that keeps only so many."""
        if key := self._some_step():
            self._remove(key)

    def _add_late(self) -> None:
        """Write a file into a step that is long over."""
        if key := self._some_step():
            self._write(key, f"{key.step}/late")

    def _remove(self, key: StepKey) -> None:
        for path in sorted(self.dump.files[key]):
            self.process.step()
            self.process.note(f"removes {path}")
            self.dump.unlink("job", key, path)


@dataclass(slots=True)
class Watcher:
    """A watcher, which is started again when it is killed."""

    name: str
    dump: SimulatedDump
    bucket: Bucket
    faults: Faults
    cluster: Cluster
    judge: Judge
    grid: Grid
    deletes: bool
    clock_s: float = 0.0
    """By how much the wall clock of its host is wrong."""
    dump_tells_time: bool = True
    """Whether it can find out what the clock of the file system says."""
    process: Process | None = None
    service: Service | None = None
    client: Client | None = None
    _seen: tuple[int, int] = (0, 0)
    _pause_s: float = _IDLE_S[0]

    def run(self) -> None:
        """Watch, for ever."""
        kernel = self.dump.kernel
        while True:
            self.process = process = Process(self.name, kernel, self.clock_s)
            try:
                service = self._build(process)
                while True:
                    service.tick(wake=self._idle)
            except Killed:
                process.note("is killed")
                if self.client is not None:
                    self.cluster.release(self.client)
            self.service = None
            kernel.sleep(_RESTART_S)

    def explain(self) -> list[str]:
        """Return for each step what it waits for."""
        if self.service is None:
            return [f"{self.name} does not run"]
        rows = explain_table(self.service.table, self.service.current_policy, self.service.clock())
        return [f"{self.name}: rank {row.rank} step {row.step} is {row.phase}: {row.reason}" for row in rows]

    def _build(self, process: Process) -> Service:
        objects = SimulatedObjects(process, self.bucket, self.faults)
        options = ServiceOptions(
            StepPolicy(QUIET),
            self.grid,
            DispatchLimits(10**9),
            host="host",
            poll_s=5.0,
            retry_forever=True,
            retention=RetentionPolicy() if self.deletes else None,
            quiet_clock=QuietClock(process.monotonic, process.wall, self._file_system_time),
            clock=process.monotonic,
            task_timeout_s=TASK_TIMEOUT_S,
        )
        self.client = self.cluster.client()
        client = cast("DaskClient", self.client)
        view = DumpView(self.dump, process)
        service = Service(view, objects, lambda: client, options, observers=[self._observe])
        service.dependencies.probe = SimulatedProbe(process)  # type: ignore[assignment]
        service.dependencies.ask = lambda: None  # the answers of a simulated store are not late
        service.submitter._window._ended = FinishedTasks(self._idle)  # type: ignore[assignment]
        if service.retention is not None:
            service.retention._threads = DeletingThread(process, self.dump, self.faults)  # type: ignore[assignment]
        self.service = service
        return service

    def _file_system_time(self, _: Path) -> float | None:
        return EPOCH + self.dump.kernel.now if self.dump_tells_time else None

    def _observe(self, event: Event) -> None:
        """Remember which steps a person has to decide about, as they are now."""
        if isinstance(event, StepFailed) and isinstance(event.error, FilesNotTaken):
            self.judge.refused.add((event.plan.key, self.dump.state(event.plan.key)))

    def _idle(self, seconds: float) -> None:
        assert self.process is not None
        seen = self.dump.version, self.bucket.version
        is_busy = self.service is not None and self.service.submitter.offered_steps
        longest_s = _BUSY_S if is_busy else _IDLE_S[1]
        self._pause_s = min(self._pause_s * 2, longest_s) if seen == self._seen else _IDLE_S[0]
        self._seen = seen
        self.process.sleep(max(seconds, self._pause_s))


@dataclass(slots=True)
class Consolidator:
    """Holds the lease and writes under it, as a consolidator does; started again when it is killed."""

    name: str
    bucket: Bucket
    faults: Faults
    judge: Judge
    clock_s: float = 0.0
    process: Process | None = None
    _starts: int = 0

    def run(self) -> None:
        """Consolidate, for ever."""
        kernel = self.bucket.kernel
        while True:
            self.process = process = Process(self.name, kernel, self.clock_s)
            self._starts += 1
            objects = SimulatedObjects(process, self.bucket, self.faults)
            owner = f"{self.name}:1:{self._starts}"
            lease = Lease(objects, LEASE, "the view", process.monotonic, process.wall, process.sleep, owner)
            try:
                self._consolidate(objects, lease)
            except LeaseHeld as exc:
                process.note(f"gives up: {exc.message}")
            except StoreError:
                process.note("fails")
            except Killed:
                process.note("is killed")
            kernel.sleep(15.0)

    def _consolidate(self, objects: SimulatedObjects, lease: Lease) -> None:
        lease.acquire()
        while True:
            for _ in range(2):
                lease.keep()
                objects.put(CUBES, lease.owner.encode())
            self.judge.rounds = self.bucket.kernel.now
            objects.process.sleep(20.0)


@dataclass(slots=True)
class Collector:
    """Plans a gc, and carries the plan out: at once or later; or encodes the tensors of all steps again."""

    bucket: Bucket
    faults: Faults
    judge: Judge
    runs: int
    recompresses: bool = False
    """Whether it does the latter, too: as often as the former."""
    ended: int = 0
    clock_s: float = 0.0
    process: Process | None = None

    def run(self) -> None:
        """Collect a few times."""
        kernel = self.bucket.kernel
        for _ in range(self.runs):
            kernel.sleep((20.0, 1.2 * GRACE_S)[kernel.choices.pick(2)])
            self.process = process = Process("gc", kernel, self.clock_s)
            objects = SimulatedObjects(process, self.bucket, self.faults)
            do = self._recompress if self.recompresses and kernel.choices.pick(2) else self._collect
            try:
                do(process, objects)
            except (StoreError, UsageError) as exc:
                process.note(f"fails: {exc.message}")
            except Killed:
                process.note("is killed")
            self.ended += 1

    def _collect(self, process: Process, objects: SimulatedObjects) -> None:
        policy = GcPolicy(keep_last=self.judge.keep_last, grace_s=GRACE_S)
        plan = make_plan(take_inventory(objects), policy, process.wall())
        process.sleep((0.0, 30.0)[process.kernel.choices.pick(2)])
        Execution(objects, plan, clock=process.wall).run()

    def _recompress(self, process: Process, objects: SimulatedObjects) -> None:
        """Do what `recompress_store` does with steps of any age; it was planned now, or a while ago."""
        keys = sorted(self.judge.visible, key=lambda key: key.order)
        process.sleep((0.0, 30.0)[process.kernel.choices.pick(2)])
        for key in keys:
            done = recompress(objects, key)
            process.note(f"recompress {key}: {done.left or 'done'}")


@dataclass(slots=True)
class Reader:
    """Reads commits, object by object, while all of this goes on."""

    bucket: Bucket
    dump: SimulatedDump
    judge: Judge
    reads: int

    def run(self) -> None:
        """Read some steps."""
        kernel = self.bucket.kernel
        process = Process("reader", kernel, may_die=False)
        objects = SimulatedObjects(process, self.bucket, Faults(kernel.choices))
        for _ in range(self.reads):
            process.sleep(7.0)
            for key in sorted(self.judge.visible, key=lambda key: key.order):
                self._read(objects, key)

    def _read(self, objects: SimulatedObjects, key: StepKey) -> None:
        committed = commit.read(objects, key)
        if committed is None:
            return
        try:
            index, contents = read_generation(objects, committed)
        except DamagedStore as exc:
            if commit.read(objects, key) == committed:
                raise Violation("readers see whole steps", exc.message) from exc
            return
        for path, (size, mtime_ns) in index.items():
            if self.dump.contents[path, size, mtime_ns] != contents[path]:
                raise Violation("readers see whole steps", f"{key}: {path} has other bytes")


def set_clock(actor: Watcher | Consolidator | Collector, seconds: float) -> None:
    """Set the wall clock of the host of an actor."""
    actor.clock_s = seconds
    if actor.process is not None:
        actor.process.offset_s = seconds
