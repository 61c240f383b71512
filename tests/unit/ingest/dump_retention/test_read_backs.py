"""Read-backs in tasks: cut by size, behind conversions, again after a lost client."""

from typing import Any

import pytest

from ingest.dispatch.window import batches
from ingest.dump_retention.retention import ReadBacks
from tests.fake_client import FakeClient
from workers.errors import ClusterError
from workers.model import SourceFile, StepKey
from workers.store.model import StoreAddress
from workers.tasks.read_back import ReadBackJob

KEY = StepKey(0, 1)
STORE = StoreAddress("memory://store")


def job(number: int = 0, nbytes: int = 1, key: StepKey = KEY) -> ReadBackJob:
    return ReadBackJob(key, number, "f" * 32, "/dump", STORE, (SourceFile(f"{number}.npy", nbytes, 0),))


def jobs(*sizes: int) -> list[list[int]]:
    files = tuple(SourceFile(f"{number}.npy", size, 0) for number, size in enumerate(sizes))
    return [[file.size for file in batch] for batch in batches(files, 10, 3)]


def test_files_are_shared_among_jobs_by_size_and_number() -> None:
    assert jobs(4, 4, 4) == [[4, 4], [4]]
    assert jobs(99, 1) == [[99], [1]]
    assert jobs(1, 1, 1, 1) == [[1, 1, 1], [1]]
    assert jobs() == [[]]


def test_jobs_of_a_lost_client_are_submitted_again() -> None:
    clients: list[Any] = [FakeClient()]
    running = ReadBacks(lambda: clients[-1], 10**9)
    running.offer(job())
    running.poll()
    clients.append(FakeClient())
    running.poll()
    assert len(clients[1].pending) == 1


def test_nothing_is_lost_while_there_is_no_scheduler() -> None:
    client: Any = FakeClient()
    answers: list[Any] = [ClusterError("no scheduler"), client]

    def connect() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    running = ReadBacks(connect, 10**9)
    running.offer(job())
    with pytest.raises(ClusterError):
        running.poll()
    running.poll()
    assert len(client.pending) == 1


def test_jobs_of_a_dropped_step_are_cancelled_and_those_of_others_go_on() -> None:
    client: Any = FakeClient()
    running = ReadBacks(lambda: client, 1)
    other = StepKey(1, 1)
    for key in (KEY, KEY, other):
        running.offer(job(key=key))
    running.poll()
    running.drop(KEY)
    assert [future.status for future in client.futures] == ["cancelled"]
    running.poll()
    assert len(client.pending) == 1
    running.cancel()
    assert running.has_room
    assert not client.pending
