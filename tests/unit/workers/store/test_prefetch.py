"""Results come in order, a bounded number ahead, and nothing goes on after the end."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from workers.store.prefetch import in_order, prefetch


def counted(drawn: list[int], count: int) -> Iterator[int]:
    """Yield numbers, and record each one that is drawn."""
    for number in range(count):
        drawn.append(number)
        yield number


def test_results_come_in_the_order_of_the_items() -> None:
    """Also if a later one is done first."""
    second_is_done = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert second_is_done.wait(10)
        if number == 1:
            second_is_done.set()
        return number * number

    assert list(prefetch(range(5), work, ahead=2, threads=2)) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_more_items_are_drawn_than_may_be_ahead(ahead: int) -> None:
    """What is ahead is in memory."""
    drawn: list[int] = []
    results = prefetch(counted(drawn, 10), str, ahead=ahead)
    assert drawn == []
    for number in range(10):
        assert next(results) == str(number)
        assert len(drawn) == min(number + ahead + 1, 10)


def test_error_comes_in_the_place_of_its_result() -> None:
    def invert(number: int) -> float:
        return 1 / number

    results = prefetch([2, 1, 0, 4], invert, ahead=3)
    assert [next(results), next(results)] == [0.5, 1.0]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_what_is_pending_is_cancelled_when_the_caller_stops() -> None:
    futures: list[Future[int]] = []

    def submit(number: int) -> Future[int]:
        futures.append(Future())
        if number == 0:
            futures[-1].set_result(0)
        return futures[-1]

    results = in_order(range(10), submit, ahead=3)
    assert next(results) == 0
    results.close()
    assert [future.cancelled() for future in futures] == [False, True, True, True]
