"""Viewers of the page: each has a connection of its own, and opens a view every half second."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

_THINK_S = 0.5


class Connection:
    """A connection that stays open between requests, like that of a browser; a context manager."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=300)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> tuple[int, bytes, float]:
        """Request a path as a browser does.

        Returns:
            The status, 0 if there was no answer; the body, compressed with gzip; the seconds until it was
            complete.
        """
        started = time.perf_counter()
        try:
            self._connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0, b"", time.perf_counter() - started
        return answer.status, body, time.perf_counter() - started


@dataclass(eq=False)
class Viewers:
    """What several viewers of the same server measure."""

    url: str
    paths: Sequence[str]
    seconds: list[float] = field(default_factory=list)
    """How long each answer took."""
    slowest: tuple[float, str] = (0.0, "")
    """The longest that an answer took, in seconds, and its path."""
    failures: list[tuple[str, int]] = field(default_factory=list)
    """The paths whose answer had another status than 200, with that status; 0 for no answer."""
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def looking(self, count: int) -> Iterator[Self]:
        """Let `count` viewers open random views for the duration of the block."""
        people = [threading.Thread(target=self._look, args=(number,)) for number in range(count)]
        for person in people:
            person.start()
        try:
            yield self
        finally:
            self._stop.set()
            for person in people:
                person.join()

    def _look(self, number: int) -> None:
        chooser = random.Random(number)
        with Connection(self.url) as connection:
            while not self._stop.wait(chooser.uniform(0, 2 * _THINK_S)):
                path = chooser.choice(self.paths)
                status, _, seconds = connection.get(path)
                self.seconds.append(seconds)
                self.slowest = max(self.slowest, (seconds, path))
                if status != 200:
                    self.failures.append((path, status))


def walk(url: str, paths: Sequence[str], people: int) -> None:
    """Let `people` viewers open all these views at the same time, each of them in this order."""

    def look() -> None:
        with Connection(url) as connection:
            for path in paths:
                connection.get(path)
                time.sleep(_THINK_S)

    threads = [threading.Thread(target=look) for _ in range(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
