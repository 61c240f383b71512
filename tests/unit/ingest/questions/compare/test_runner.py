"""Pairs are compared in batches, in threads or tasks."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ingest.questions.compare.runner import ClusterRunner, ThreadRunner, batched
from workers.arrays.dtypes import from_name
from workers.errors import ClusterError, SourceChanged
from workers.tasks.compare import WHOLE_NBYTES, Pair
from workers.tasks.operands import Operand


def pair(nbytes: int) -> Pair:
    """Return two tensors of which nothing is known but their digest, which is the same."""
    side = Operand("rank 0 step 0", from_name("uint8"), (nbytes // 2,), nbytes // 2, None, digest=b"x" * 16)
    return Pair(side, side)


def test_small_pairs_share_a_batch_and_a_large_one_has_its_own() -> None:
    sizes = [
        [p.nbytes for p in batch] for batch in batched([pair(10), pair(20), pair(4 * WHOLE_NBYTES), pair(30)])
    ]
    assert sizes == [[10, 20], [4 * WHOLE_NBYTES], [30]]


def test_a_few_pairs_are_shared_among_those_who_are_idle() -> None:
    assert len(list(batched([pair(WHOLE_NBYTES // 4)] * 4, parts=1))) == 1
    assert len(list(batched([pair(WHOLE_NBYTES // 4)] * 4, parts=2))) == 2
    assert list(batched([])) == []


def test_the_first_batch_does_not_wait_for_all_pairs_if_their_size_is_known() -> None:
    made: list[int] = []

    def pairs() -> Iterator[Pair]:
        for number in range(4):
            made.append(number)
            yield pair(WHOLE_NBYTES // 2)

    batches = batched(pairs(), 1, 2 * WHOLE_NBYTES)
    assert len(next(batches)) == 2
    assert made == [0, 1, 2]
    assert [len(batch) for batch in batches] == [2]


def test_outcomes_of_threads_come_in_the_order_of_the_batches() -> None:
    with ThreadRunner(2) as threads:
        outcomes = list(threads.run([[pair(2)] * count for count in (1, 2, 3) * 5]))
    assert [len(batch) for batch in outcomes] == [1, 2, 3] * 5
    assert {outcome.basis for batch in outcomes for outcome in batch} == {"digest"}


class FailingClient:
    """A cluster of which every task fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def nthreads(self) -> dict[str, int]:
        return {"a": 1}

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(self._error)
        return future


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(SourceChanged("it changed"), SourceChanged), (ValueError("broken"), ClusterError)],
)
def test_an_error_of_a_worker_is_one_of_ours(raised: Exception, expected: type[Exception]) -> None:
    client: Any = FailingClient(raised)
    with pytest.raises(expected):
        list(ClusterRunner(client).run([[pair(2)]]))
