"""Pairs are compared in batches, in threads or tasks."""

from concurrent.futures import Future
from typing import Any

import pytest

from ingest.questions.compare.runner import PairRunner
from workers.arrays.dtypes import from_name
from workers.errors import ClusterError, SourceChanged
from workers.tasks.compare import Pair, compare_pairs
from workers.tasks.operands import Operand


def pair(nbytes: int) -> Pair:
    """Return two tensors of which nothing is known but their digest, which is the same."""
    side = Operand("rank 0 step 0", from_name("uint8"), (nbytes // 2,), nbytes // 2, None, digest=b"x" * 16)
    return Pair(side, side)


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
        list(PairRunner(client).map(compare_pairs, [[pair(2)]]))
