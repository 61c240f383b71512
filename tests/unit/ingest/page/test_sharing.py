"""Answers that viewers share, and figures of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ingest.page.server import MOST_UNDER_WAY, PageBusy, SharedAnswers


def test_many_viewers_cost_one_answer() -> None:
    made = []
    go = threading.Event()

    def make() -> bytes:
        go.wait(30)
        made.append(1)
        return b"answer"

    async def look() -> list[bytes]:
        with ThreadPoolExecutor(4) as pool:
            answers = SharedAnswers(pool, pool)
            viewers = [asyncio.create_task(answers.answer("question", make)) for _ in range(20)]
            await asyncio.sleep(0)
            viewers[0].cancel()  # a viewer who leaves does not take it from the others
            go.set()
            return await asyncio.gather(*viewers[1:])

    assert asyncio.run(look()) == [b"answer"] * 19
    assert made == [1]


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    async def look() -> tuple[int, int, int]:
        with ThreadPoolExecutor(1) as pool:
            answers = SharedAnswers(pool, pool, limit=10_000)
            for question in ("a", "b", "a", "c", "a"):
                await answers.answer(question, lambda: bytes(4000))
            made = answers.made
            await answers.answer("b", lambda: bytes(4000))
            await answers.answer("large", lambda: bytes(10_000))
            return made, answers.made, answers.nbytes

    made, made_at_last, nbytes = asyncio.run(look())
    assert (made, made_at_last) == (3, 5)
    assert 8000 < nbytes <= 10_000


def test_questions_that_wait_for_a_thread_are_bounded() -> None:
    async def look() -> tuple[bytes, list[bytes]]:
        gate = threading.Event()

        def make() -> bytes:
            gate.wait(60)
            return b"answer"

        with ThreadPoolExecutor(1) as pool:
            answers = SharedAnswers(pool, pool)
            first = [asyncio.create_task(answers.answer(number, make)) for number in range(MOST_UNDER_WAY)]
            await asyncio.sleep(0)
            with pytest.raises(PageBusy, match="the page is busy"):
                await answers.answer("one more", make)
            shared = asyncio.create_task(
                answers.answer(0, make)
            )  # another viewer of the same asks nothing new
            await asyncio.sleep(0)
            gate.set()
            made = await asyncio.gather(shared, *first)
            return await answers.answer("one more", make), made

    assert asyncio.run(look()) == (b"answer", [b"answer"] * (MOST_UNDER_WAY + 1))


def test_slow_answers_keep_no_others_waiting() -> None:
    async def run() -> bytes:
        gate = threading.Event()

        def slow() -> bytes:
            gate.wait(60)
            return b"slow"

        with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as slow_pool:
            answers = SharedAnswers(pool, slow_pool)
            waiting = [asyncio.create_task(answers.answer(number, slow, is_slow=True)) for number in range(3)]
            await asyncio.sleep(0)
            other = await asyncio.wait_for(answers.answer("other", lambda: b"other"), 60)
            gate.set()
            assert await asyncio.gather(*waiting) == [b"slow"] * 3
            return other

    assert asyncio.run(run()) == b"other"


@pytest.fixture
def answers() -> Iterator[SharedAnswers]:
    with ThreadPoolExecutor(1) as pool:
        yield SharedAnswers(pool, pool, 1000)
