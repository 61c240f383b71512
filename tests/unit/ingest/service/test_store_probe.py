"""When a store that was away is back."""

import time
from collections.abc import Iterator

import pytest

from ingest.service.offering import StoreProbe
from workers.errors import ClusterError, DumpIngestError, StoreDenied, StoreUnavailable

pytestmark = pytest.mark.timeout(10)


class Store:
    """Answers as it is told: with these, and then well."""

    def __init__(self, *answers: DumpIngestError | None) -> None:
        self.asked = 0
        self._answers: Iterator[DumpIngestError | None] = iter(answers)

    def __call__(self) -> None:
        self.asked += 1
        answer = next(self._answers, None)
        if answer is not None:
            raise answer


def ended(outage: StoreProbe) -> bool:
    """Wait for the thread that asks, and say whether it found an end."""
    assert outage._thread is not None
    outage._thread.join()
    return outage.poll_recovered()


def test_a_store_that_comes_back_is_noticed_once() -> None:
    store = Store(StoreUnavailable("away"), StoreUnavailable("away"))
    outage = StoreProbe(store, pause_s=0.01)
    outage.report_failure(StoreUnavailable("a task failed"))
    outage.report_failure(StoreUnavailable("another one"))
    assert ended(outage)
    assert store.asked == 3
    assert not outage.poll_recovered()
    outage.pause_s = 5
    outage.report_failure(StoreUnavailable("and a late one"))
    assert not ended(outage)


def test_a_store_that_refuses_is_not_asked_again() -> None:
    store = Store(StoreUnavailable("away"), StoreDenied("other credentials"))
    outage = StoreProbe(store, pause_s=0.01)
    outage.report_failure(StoreUnavailable("a task failed"))
    assert not ended(outage)
    assert store.asked == 2


@pytest.mark.parametrize("error", [ClusterError("no scheduler"), StoreDenied("no")])
def test_other_errors_are_no_outage(error: DumpIngestError) -> None:
    store = Store()
    outage = StoreProbe(store, pause_s=0.01)
    outage.report_failure(error)
    time.sleep(0.05)
    assert store.asked == 0
