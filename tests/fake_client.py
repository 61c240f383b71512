"""A Dask client whose tasks run in this process, and only when the test tells them to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distributed.client import ClosedClientError

from workers.tasks import run as tasks
from workers.tasks.model import ShardJob


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
