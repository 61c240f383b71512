"""Services over made dumps, with a client that runs tasks at once, or when it is told to; no cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from distributed import Client
from distributed.client import ClosedClientError
from prometheus_client import CollectorRegistry

from ingest.disk import DiskSpace, Pressure
from ingest.dispatch.submitter import DispatchLimits
from ingest.dump_retention.policy import RetentionPolicy
from ingest.layouts.detect import find_dump
from ingest.metrics import WatcherMetrics, serve
from ingest.service.live_watcher import PATH
from ingest.service.offering import ServiceOptions
from ingest.service.one_shot import LiveSteps, Report, ingest_once
from ingest.service.service import Service
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.watcher import QuietClock
from tests.servers.process import free_port
from tests.stores import MadeDump
from workers.events import Event, Observer
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.tasks import run as tasks
from workers.tasks.model import ShardJob

# A Dask client whose tasks run in this process, and only when the test tells them to.


@dataclass(eq=False)
class FakeFuture:
    """A task that stays pending until the test calls `run`, `fail` or `lose`."""

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    status: str = "pending"
    value: Any = None
    callbacks: list[Callable[[Any], None]] = field(default_factory=list)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)
        if self.status != "pending":
            callback(self)

    def result(self, timeout: float) -> Any:
        assert timeout > 0
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def cancel(self) -> None:
        self.lose()

    def run(self) -> None:
        try:
            value = self.function(*self.arguments)
        except Exception as error:  # noqa: BLE001  (a worker catches every exception, too)
            self._end("error", error)
        else:
            self._end("finished", value)

    def fail(self, error: BaseException) -> None:
        self._end("error", error)

    def lose(self) -> None:
        self._end("cancelled", None)

    def _end(self, status: str, value: Any) -> None:
        if self.status == "pending":
            self.status, self.value = status, value
            for callback in self.callbacks:
                callback(self)

    @property
    def jobs(self) -> list[ShardJob]:
        """The jobs that the task converts; empty for a task that only publishes."""
        (packed,) = self.arguments
        if self.function in (tasks.run_convert, tasks.run_convert_isolated):
            return [tasks.unpack_convert(packed)]
        if self.function in (tasks.run_steps, tasks.run_steps_isolated):
            return [job for plan in tasks.unpack_steps(packed) for job in plan.jobs]
        return []

    @property
    def nbytes(self) -> int:
        return sum(job.nbytes for job in self.jobs)


@dataclass
class FakeClient:
    """The part of `distributed.Client` that `Submitter` uses."""

    status: str = "running"
    futures: list[FakeFuture] = field(default_factory=list)
    dies_after: int = 10**9
    """The number of submitted tasks after which the connection is lost."""
    closes_at: int = 10**9
    """Before which task the connection is lost, when the caller has just seen that it stands."""
    eager: bool = False
    """Whether each task runs as soon as it is submitted."""

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        key: str,
        pure: bool,
        resources: dict[str, float] | None,
        priority: int = 0,
    ) -> FakeFuture:
        assert not pure
        assert (priority < 0) == key.startswith(("read-back", "recheck"))
        assert resources is None
        assert self.status == "running"
        if len(self.futures) >= self.closes_at:
            self.status = "closed"
            raise ClosedClientError
        assert key not in {future.key for future in self.futures}, "Dask would return the old result"
        self.futures.append(FakeFuture(key, function, arguments))
        if len(self.futures) >= self.dies_after:
            self.status = "closed"
        if self.eager:
            self.futures[-1].run()
        return self.futures[-1]

    @property
    def pending(self) -> list[FakeFuture]:
        return [future for future in self.futures if future.status == "pending"]


# A service over a made dump, with a client that runs every task at once: no thread, no cluster.


def make_service(
    dump: Path,
    store: Path | ObjectStore,
    *,
    observers: Sequence[Observer] = (),
    client: FakeClient | None = None,
    **options: Any,
) -> Service:
    """Return a service that has done nothing yet; to it, all of the dump has been quiet for a minute.

    `options` are those of `ServiceOptions`.
    """
    chosen: dict[str, Any] = {
        "policy": StepPolicy(CompletenessPolicy(quiet_s=10, settle_s=1)),
        "limits": DispatchLimits(10**9, max_attempts=2, first_pause_s=0.01),
        "quiet_clock": QuietClock(files=lambda _: time.time() + 60),
        "poll_s": 0.02,
    } | options
    client = client or FakeClient(eager=True)
    objects = open_objects(resolve(str(store))) if isinstance(store, str | Path) else store
    return Service(
        find_dump(dump),
        objects,
        lambda: cast("Client", client),
        ServiceOptions(**chosen),
        observers=observers,
    )


class Heard(list[Event]):
    """An observer that remembers."""

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self if isinstance(event, kind)]

    def keys(self, kind: type[Any]) -> list[StepKey]:
        """Return the steps of the outcomes of one kind."""
        return [event.plan.key for event in self.of(kind)]


def observed_service(made: MadeDump, store: Path, **options: Any) -> tuple[Service, Heard]:
    """Return a service, and what it reports."""
    heard = Heard()
    return make_service(made.root, store, observers=[heard.append], **options), heard


def ingest(made: MadeDump, store: Path, **options: Any) -> Report:
    """Take everything of a dump into a store."""
    return ingest_once(make_service(made.root, store, **options), threading.Event())


# A service that deletes committed source files, with a client that runs each task at once, without Dask.


class Run:
    """One watching process that deletes source files. A second `Run` plays its restart."""

    def __init__(
        self,
        dump: Path,
        store: Path,
        policy: RetentionPolicy | None = None,
        *,
        dry_run: bool = False,
        client: FakeClient | None = None,
    ) -> None:
        """Everything in the dump has been quiet for a minute."""
        self.client = client or FakeClient(eager=True)
        self.events = Heard()
        self.service = make_service(
            dump,
            store,
            observers=[self.events.append],
            client=self.client,
            host="here",
            rules=load_rules(None).enabled,
            retention=policy or RetentionPolicy(),
            dry_run=dry_run,
        )

    def ingest(self) -> Report:
        """Run to the end."""
        assert self.service.retention is not None
        try:
            return ingest_once(self.service, threading.Event())
        finally:
            self.service.retention.close()

    def told(self, kind: type[Any]) -> list[Any]:
        """Return everything of one kind that was reported."""
        return self.events.of(kind)


# A watcher in this process that serves its metrics and steps, and works when it is told to.


@contextmanager
def served_watcher(dump: Path, store: Path, **options: Any) -> Iterator[tuple[str, Service]]:
    """Yield where it serves, and its service: each `tick` of it is a look and some work.

    `options` are those of `make_service`.
    """
    registry = CollectorRegistry()
    metrics = WatcherMetrics(registry, store=str(store))
    live, port = LiveSteps(), free_port()
    service = make_service(dump, store, observers=[metrics.observe], **options)
    live.attach(service)
    metrics.observe(Pressure().judge(DiskSpace(100, 1000, 5, 10)))
    stop = serve(registry, f"127.0.0.1:{port}", {PATH: live.page}, trigger=live.trigger)
    try:
        yield f"http://127.0.0.1:{port}", service
    finally:
        stop()
