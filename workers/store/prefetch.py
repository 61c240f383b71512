"""Look-ahead: results in the order of their inputs, while the next ones are computed in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Pending(Protocol[Result_co]):
    """A result that is on its way: a future of `concurrent.futures` or of Dask."""

    def result(self) -> Result_co:
        """Wait for the result and return it, or raise what the computation raised."""

    def cancel(self) -> object:
        """Give the computation up if it has not begun."""


def prefetch(
    items: Iterable[Item],
    function: Callable[[Item], Result],
    *,
    ahead: int,
    threads: int = 1,
    name: str = "dump-ingest-prefetch",
) -> Generator[Result, None, None]:
    """Yield `function(item)` for each item, in their order, computed in threads ahead of need.

    The threads end with the iterator; what has not begun by then is dropped.

    Args:
        items: iterated by the caller's thread, never more than `ahead` + 1 items in front.
        function: called in the threads; what it raises is raised here, in the place of its result.
        ahead: how many further items are computed, or done, while the caller holds a result.
        threads: with a single one, the calls are made in the order of the items.
        name: of the threads.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        yield from in_order(items, lambda item: pool.submit(function, item), ahead=ahead)


def in_order(
    items: Iterable[Item], submit: Callable[[Item], Pending[Result]], *, ahead: int
) -> Generator[Result, None, None]:
    """Yield the result of each item, in their order, with at most `ahead` more submitted meanwhile.

    Whatever ends the iteration, what is still pending then is cancelled.

    Args:
        items: iterated by the caller's thread, never more than `ahead` + 1 items in front.
        submit: begins the computation of one item and returns at once.
        ahead: how many further items are under way, or done, while the caller holds a result.
    """
    pending: deque[Pending[Result]] = deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for left in pending:
            left.cancel()
