"""A Dask cluster whose workers are actors, and what its tasks do: the same requests, in the same order."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import Empty
from typing import Any

import numpy as np

from tests.simulation.dump import Content, SimulatedDump
from tests.simulation.faults import OF_FILES, OF_TASKS, Faults
from tests.simulation.kernel import Kernel, Killed, Process
from tests.simulation.objects import INDEX, SHARD, TENSORS, Bucket, SimulatedObjects
from workers.errors import DamagedStore, DumpIngestError, SourceChanged, SourceDiffers, as_error
from workers.model import SourceFile, StepKey
from workers.store import commit, metadata
from workers.store.model import ArraySpec, CommitSummary, Totals
from workers.store.packed import pool
from workers.store.packed.pool import PooledArray
from workers.store.packed.pool_packer import PoolPacker
from workers.store.record import new_record
from workers.tasks import run as tasks
from workers.tasks.model import ShardJob, StepPlan
from workers.tasks.read_back import ReadBack, ReadBackJob, ReadBackVerdict

#: How often a worker whose task blocks looks whether it was replaced: its nanny kills it at once.
_BLOCKED_S = 10.0
#: Workers that may die of a task before it counts as deadly, as in Dask.
_MAX_DEATHS = 3
_NO_COUNTS: dict[str, Any] = {
    name: 0 for name in Totals.__dataclass_fields__ if name not in {"status", "rules"}
} | {"findings": {}, "severities": {}, "failed_rules": {}}
_TENSORS = ArraySpec(TENSORS, "float32", 4, big_endian=False, chunk=16, chunks_per_shard=1)
_NODES = {"": metadata.group(), TENSORS: metadata.packed_array(_TENSORS, 16)}


@dataclass(frozen=True, slots=True)
class SimulatedReceipt:
    """What a job reports: the files that it has read, and what was in them."""

    number: int
    contents: dict[str, Content]
    key: str
    pooled: dict[str, PooledArray] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Future:
    """A task, as the client sees it."""

    client: Client
    key: str
    function: Callable[..., Any]
    argument: Any
    worker: str = ""
    """Where it runs."""
    is_blocked: bool = False
    status: str = "pending"
    value: Any = None
    deaths: int = 0
    callbacks: list[Callable[[Any], None]] = field(default_factory=list)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def result(self, timeout: float) -> Any:  # noqa: ARG002
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def cancel(self) -> None:
        self.end("cancelled", None)

    def end(self, status: str, value: Any) -> None:
        if self.status == "pending":
            self.status, self.value = status, value
            for callback in self.callbacks:
                callback(self)


class FinishedTasks:
    """The queue of tasks that have ended, in which a watcher waits in virtual time."""

    def __init__(self, idle: Callable[[float], None]) -> None:
        self._idle = idle
        self._tasks: deque[Any] = deque()

    def put(self, task: Any) -> None:
        self._tasks.append(task)

    def get_nowait(self) -> Any:
        if not self._tasks:
            raise Empty
        return self._tasks.popleft()

    def get(self, timeout: float) -> Any:
        if timeout and not self._tasks:
            self._idle(timeout)
        return self.get_nowait()


@dataclass(eq=False, slots=True)
class Cluster:
    """A scheduler and its workers."""

    kernel: Kernel
    dump: SimulatedDump
    bucket: Bucket
    faults: Faults
    pools: bool = False
    """Whether tasks put something into the pool of a step."""
    queue: deque[Future] = field(default_factory=deque)
    futures: dict[str, Future] = field(default_factory=dict)
    """The tasks that the scheduler knows."""
    processes: dict[str, Process] = field(default_factory=dict)
    at_work: dict[str, str] = field(default_factory=dict)
    """By worker: the task that it runs."""
    process: Process = field(init=False)

    def __post_init__(self) -> None:
        self.process = Process("scheduler", self.kernel)

    def get_task_status(self, keys: Sequence[str], **_: Any) -> dict[str, str | None]:
        """Return for each task its state; None for one that is not known."""
        return {key: "processing" if key in self.futures else None for key in keys}

    def processing(self, **_: Any) -> dict[str, list[str]]:
        """Return the tasks that each worker runs."""
        running: dict[str, list[str]] = {name: [] for name in self.processes}
        pending = {key: future for key, future in self.futures.items() if future.status == "pending"}
        for key, future in pending.items():
            if future.worker:
                running[future.worker].append(key)
        # A worker is believed to be free as soon as the client of its task has gone.
        free = [name for name, keys in running.items() if not keys]
        waiting = [key for key, future in pending.items() if not future.worker]
        for key, name in zip(waiting, free, strict=False):
            running[name].append(key)
        return running

    def proxy(self, worker: str, **_: Any) -> dict[str, list[str]]:
        """Return what a worker runs, whether its client is still there or not."""
        key = self.at_work.get(worker)
        return {} if key is None else {key: []}

    def release(self, client: Client) -> None:
        """Forget the tasks of a client that has gone; a worker goes on with the one that it runs."""
        for key in [key for key, future in self.futures.items() if future.client is client]:
            self.futures.pop(key).end("cancelled", None)

    def client(self) -> Client:
        return Client(self)

    def requeue(self, future: Future) -> None:
        """Have another worker take a task whose worker died or stands still."""
        future.deaths += 1
        future.worker = ""
        if future.deaths >= _MAX_DEATHS:
            future.end("cancelled", None)
        elif future.status == "pending":
            self.queue.append(future)
            self.kernel.wake()

    def work(self, name: str) -> None:
        """Be a worker, and its nanny."""
        while True:
            self.processes[name] = process = Process(name, self.kernel)
            objects = SimulatedObjects(process, self.bucket, self.faults)
            worker = Worker(process, self.dump, objects, self.faults, pools=self.pools)
            future: Future | None = None
            try:
                while True:
                    while not self.queue:
                        self.kernel.park()
                    future = self.queue.popleft()
                    if future.status != "pending":
                        continue
                    future.worker = name
                    self.at_work[name] = future.key
                    process.step()
                    while future.is_blocked:
                        process.sleep(_BLOCKED_S)
                    self._run(worker, future)
                    del self.at_work[name]
                    future = None
            except Killed:
                self.at_work.pop(name, None)
                process.note("is killed")
                if future is not None:
                    future.is_blocked = False
                    self.requeue(future)
            self.kernel.sleep(2.0)

    def _run(self, worker: Worker, future: Future) -> None:
        worker.on_stall = lambda: self.requeue(future)
        try:
            value = worker.run(future.function, future.argument)
        except DumpIngestError as exc:
            future.end("error", exc)
        else:
            future.end("finished", value)


@dataclass(eq=False, slots=True)
class Client:
    """The part of `distributed.Client` that is used."""

    cluster: Cluster
    status: str = "running"

    def submit(self, function: Callable[..., Any], argument: Any, key: str, **_: Any) -> Future:
        cluster = self.cluster
        future = Future(self, key, function, argument)
        fault = cluster.faults.draw(cluster.process, OF_TASKS)
        if fault:
            cluster.process.note(f"{key}: is {fault}")
        if fault != "forgotten":
            future.is_blocked = fault == "blocked"
            cluster.futures[key] = future
            cluster.queue.append(future)
            cluster.kernel.wake()
        return future

    @property
    def scheduler(self) -> Cluster:
        """The scheduler, to ask."""
        return self.cluster

    def sync(self, ask: Callable[..., Any], **arguments: Any) -> Any:
        """Return what the scheduler answers."""
        return ask(**arguments)

    def restart_workers(self, workers: Sequence[str], **_: Any) -> None:
        """Have the nannies of workers replace them."""
        for name in workers:
            self.cluster.processes[name].is_dead = True
            self.cluster.process.note(f"{name} is replaced")


@dataclass(slots=True)
class Worker:
    """Runs tasks as `workers.tasks` does: reads files, writes shards, and commits by `commit.write`."""

    process: Process
    dump: SimulatedDump
    objects: SimulatedObjects
    faults: Faults
    on_stall: Callable[[], None] = lambda: None
    pools: bool = False

    def run(self, function: Callable[..., Any], argument: Any) -> Any:
        if function in (tasks.run_steps, tasks.run_steps_isolated):
            return [self._step(plan) for plan in argument]
        if function in (tasks.run_convert, tasks.run_convert_isolated):
            return self._convert(argument)
        if function is tasks.run_publish:
            plan, receipts = argument
            return self._publish(plan, receipts)
        assert function is tasks.run_read_back
        return self._read_back(argument)

    def _step(self, plan: StepPlan) -> CommitSummary | DumpIngestError:
        try:
            return self._publish(plan, [self._convert(job) for job in plan.jobs])
        except Exception as exc:  # noqa: BLE001  (as in `workers.tasks.run`)
            return as_error(str(plan.key), exc)

    def _read(self, key: StepKey, file: SourceFile) -> Content:
        """Read a file, which must be as it was listed before and after."""
        content = self._stat(key, file)
        if self._stat(key, file) != content:
            raise SourceChanged(f"{key}: {file.path} has changed")
        return content

    def _stat(self, key: StepKey, file: SourceFile) -> Content:
        process = self.process
        process.step()
        fault = self.faults.draw(process, OF_FILES)
        process.note(f"read {file.path}{f': {fault}' if fault else ''}")
        if fault == "kill before":
            process.kill()
        elif fault == "stall":
            self.on_stall()
            process.sleep(self.faults.stall_s())
        present = self.dump.files.get(key, {}).get(file.path)
        if present is None or (present.content.size, present.mtime_ns) != (file.size, file.mtime_ns):
            raise SourceChanged(f"{key}: {file.path} has changed")
        return present.content

    def _convert(self, job: ShardJob) -> SimulatedReceipt:
        contents = {entry.source.path: self._read(job.key, entry.source) for entry in job.entries.values()}
        name = f"{SHARD}/{job.number}"
        if contents:
            self.objects.put(f"{job.key.path}/{job.fingerprint}/{name}", json.dumps(contents).encode())
        pooled = self._pack(job, contents) if self.pools and contents else {}
        return SimulatedReceipt(job.number, contents, name, pooled)

    def _pack(self, job: ShardJob, contents: Mapping[str, Content]) -> dict[str, PooledArray]:
        """Put something into the pool that other ranks, and other generations, may well have, too."""
        shared = [job.key.step or 0, job.number, sum(content.size for content in contents.values()) % 2]
        with PoolPacker(_TENSORS, job.key, self.objects, self.process.wall) as packer:
            packer.append(memoryview(np.array(shared, "<f4").tobytes()))
        return {packed.path: packed.array for packed in packer.arrays}

    def _publish(self, plan: StepPlan, receipts: Sequence[SimulatedReceipt]) -> CommitSummary:
        files = {entry.source.path: [entry.source.size, entry.source.mtime_ns] for entry in plan.entries}
        is_whole = all(whole for receipt in receipts for _, whole in receipt.contents.values())
        summary = CommitSummary(
            key=plan.key,
            fingerprint=plan.fingerprint,
            **{**_NO_COUNTS, "status": "complete" if is_whole else "partial"},
        )
        record = new_record(
            summary,
            origin=plan.origin,
            stored={receipt.key: 1 for receipt in receipts if receipt.contents},
            pool={path: array for receipt in receipts for path, array in receipt.pooled.items()},
            now=datetime.fromtimestamp(self.process.wall(), UTC),
        )
        chunks = {INDEX: json.dumps(files).encode()}
        commit.write(self.objects, record, _NODES, chunks, replaces=plan.replaces)
        return summary

    def _read_back(self, job: ReadBackJob) -> ReadBack:
        committed = commit.read(self.objects, job.key)
        if committed is None or committed.fingerprint != job.fingerprint:
            raise SourceChanged(f"{job.key} was committed again")
        index, contents = read_generation(self.objects, committed)
        if any(
            f"{committed.prefix}/{name}" in self.objects.bucket.spoiled for name in committed.record.stored
        ):
            raise DamagedStore(f"{job.key}: a digest does not match")
        verdicts, changed = [], []
        for file in job.files:
            if index.get(file.path) != (file.size, file.mtime_ns):
                verdicts.append(ReadBackVerdict.NOT_STORED)
                changed.append(0)
                continue
            if tuple(contents[file.path]) != tuple(self._read(job.key, file)):
                raise SourceDiffers(f"{job.key}: {file.path} differs")
            verdicts.append(ReadBackVerdict.SAME)
            changed.append(file.mtime_ns)
        return ReadBack(job.number, np.array(verdicts, np.int8), np.array(changed, np.int64), 0, 0.0)


def read_generation(
    objects: SimulatedObjects, committed: commit.Commit
) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, bool]]]:
    """Read index and shards of a commit.

    Raises:
        DamagedStore: an object is missing.
    """
    names = [f"{committed.prefix}/{name}" for name in (INDEX, *committed.record.stored)]
    pooled = [f"{path}/{name}" for path in committed.record.pool for name in (pool.SHARD, pool.NODE)]
    data = objects.get_many([*names, *pooled])
    if len(data) < len(names) + len(pooled):
        raise DamagedStore(f"{committed.key}: objects are missing")
    index, *shards = (json.loads(data[name]) for name in names)
    contents = {path: (version, whole) for shard in shards for path, (version, whole) in shard.items()}
    return {path: (size, mtime_ns) for path, (size, mtime_ns) in index.items()}, contents
