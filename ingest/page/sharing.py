"""Answers that viewers share: each is made once, however many ask for it, and kept while there is room."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from workers.errors import DumpIngestError
from workers.model import MIB

#: What a server keeps by default, in bytes of ready answers.
DEFAULT_NBYTES = 64 * MIB
#: What it takes to keep an answer, besides its bytes and those of its question, about.
_KEEPING_NBYTES = 512
#: The most questions whose answers are being made, or wait for a thread. Each holds a moment of its run.
MOST_UNDER_WAY = 100


class PageBusy(DumpIngestError):
    """So many answers are being made that no other is begun."""

    hint = "Try again in a minute."


@dataclass(eq=False)
class SharedAnswers:
    """Ready answers by question, which take at most `limit` bytes; the least recently asked one goes first.

    It belongs to one event loop. Answers are made in the threads of `pool`, and slow ones in those of
    `slow_pool`: the others do not wait for them. At most `MOST_UNDER_WAY` are made, or wait to be made.
    """

    pool: ThreadPoolExecutor
    slow_pool: ThreadPoolExecutor
    limit: int = DEFAULT_NBYTES
    hits: int = 0
    made: int = 0
    nbytes: int = 0
    """Of the kept answers and their questions."""
    _kept: OrderedDict[Hashable, bytes] = field(default_factory=OrderedDict)
    _under_way: dict[Hashable, asyncio.Future[bytes]] = field(default_factory=dict)

    async def answer(self, question: Hashable, make: Callable[[], bytes], *, is_slow: bool = False) -> bytes:
        """Return the answer to a question: a kept one, the one being made, or a new one.

        Raises:
            PageBusy: too many others are being made.
        """
        if question in self._kept:
            self.hits += 1
            self._kept.move_to_end(question)
            return self._kept[question]
        if question in self._under_way:
            self.hits += 1
            return await asyncio.shield(self._under_way[question])
        if len(self._under_way) >= MOST_UNDER_WAY:
            raise PageBusy(f"the page is busy: {MOST_UNDER_WAY} other answers are being made")
        self.made += 1
        future = asyncio.get_running_loop().run_in_executor(self.slow_pool if is_slow else self.pool, make)
        self._under_way[question] = future
        # A viewer who leaves does not take the answer from the others.
        future.add_done_callback(lambda done: self._settle(question, done))
        return await asyncio.shield(future)

    def _settle(self, question: Hashable, done: asyncio.Future[bytes]) -> None:
        del self._under_way[question]
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        if _nbytes_of(question, answer) > self.limit:
            return
        self._kept[question] = answer
        self.nbytes += _nbytes_of(question, answer)
        while self.nbytes > self.limit:
            self.nbytes -= _nbytes_of(*self._kept.popitem(last=False))


def _nbytes_of(question: Hashable, answer: bytes) -> int:
    """Return about how many bytes an answer takes: viewers may ask long questions with short answers."""
    return _KEEPING_NBYTES + len(repr(question)) + len(answer)
