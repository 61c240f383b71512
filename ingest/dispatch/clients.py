"""The two kinds of clients: of a Dask scheduler, and of worker processes of this command.

Both submit tasks in the same way, and say in different ways how far these are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ingest.dispatch.process_client import ProcessClient, ProcessFuture

if TYPE_CHECKING:  # importing distributed takes 0.4 s, which a command without a scheduler does not spend
    from distributed import Client, Future

TaskClient: TypeAlias = "Client | ProcessClient"
TaskFuture: TypeAlias = "Future[Any] | ProcessFuture"

#: How long to wait for an answer of the scheduler, and for a worker to be replaced, in seconds.
_ANSWER_S = 10.0
RESTART_S = 30.0
#: Of a scheduler that does not answer.
HANGS_HINT = "It hangs: restart it. Its workers and watchers reconnect by themselves."


class ClusterAnswer(NamedTuple):
    """What a scheduler and its workers said."""

    states: dict[Any, str | None]
    """By key of a task; None for one that the scheduler does not know."""
    assigned: dict[Any, str]
    """Which worker has each task: it may wait there until others have ended."""
    at_work: dict[str, frozenset[Any]]
    """What each worker runs, also for clients that have gone; nothing of one that does not even answer."""


def submit(
    client: TaskClient,
    function: Callable[[bytes], Any],
    packed: bytes,
    *,
    key: str,
    resources: dict[str, float] | None,
    priority: int = 0,
) -> TaskFuture:
    """Submit a task. If the client was closed just now, the task is cancelled, as all of its others are.

    Args:
        client: of the workers.
        function: what the task runs.
        packed: its argument.
        key: the name of the task, which no other has.
        resources: what a worker must offer, as Dask counts resources.
        priority: tasks of a higher one run first.
    """
    options: dict[str, Any] = {"key": key, "pure": False, "resources": resources, "priority": priority}
    if isinstance(client, ProcessClient):
        return client.submit(function, packed, **options)
    from distributed.client import ClosedClientError  # deferred: distributed takes 0.4 s to import

    try:
        return client.submit(function, packed, **options)
    except ClosedClientError:
        lost = ProcessFuture(key, b"")
        lost.cancel()
        return lost


def ask(client: TaskClient, keys: list[Any]) -> ClusterAnswer | None:
    """Return the progress of tasks; None if nobody answers."""
    return _ask_processes(client, keys) if isinstance(client, ProcessClient) else _ask_dask(client, keys)


def _ask_processes(client: ProcessClient, keys: list[Any]) -> ClusterAnswer:
    at_work = client.at_work()
    return ClusterAnswer(
        dict(client.states(keys)),
        {key: worker for worker, key in at_work.items()},
        {worker: frozenset([key]) for worker, key in at_work.items()},
    )


def _ask_dask(client: Client, keys: list[Any]) -> ClusterAnswer | None:
    try:
        scheduler: Any = client.scheduler
        states = client.sync(scheduler.get_task_status, keys=keys, callback_timeout=_ANSWER_S)
        processing = client.sync(scheduler.processing, workers=None, callback_timeout=_ANSWER_S)
    except Exception:  # noqa: BLE001  (of Dask or the network: the client notices a scheduler that has gone)
        return None
    assigned = {key: worker for worker, tasks in processing.items() for key in tasks}
    workers = {assigned[key] for key in keys if key in assigned}
    running_on = {worker: tasks for worker in workers if (tasks := _at_work(client, worker)) is not None}
    return ClusterAnswer(states, assigned, running_on)


def replace_worker(client: TaskClient, worker: str) -> None:
    """Have a worker replaced; returns when that has happened, or did not."""
    if isinstance(client, ProcessClient):
        client.replace(worker)
        return
    try:
        client.restart_workers([worker], timeout=RESTART_S, raise_for_error=False)
    except Exception:  # noqa: BLE001  (it has gone, or has nobody to start it again: Dask removes it)
        return


def _at_work(client: Client, worker: str) -> frozenset[Any] | None:
    """Return the keys of the tasks that a worker runs; None if it does not say."""
    scheduler: Any = client.scheduler
    question = {"op": "call_stack", "keys": None}
    try:
        return frozenset(
            client.sync(scheduler.proxy, msg=question, worker=worker, callback_timeout=_ANSWER_S)
        )
    except Exception:  # noqa: BLE001  (it has gone, or something keeps its event loop from answering)
        return None
