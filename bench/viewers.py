"""People who look at the page: each has a connection, and opens a view every half second."""

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
    """A connection that is kept, as browsers do; a context manager."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=300)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> tuple[int, bytes, float]:
        """Ask for a path as browsers do; return status, body (packed), and seconds."""
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
    """Several people, until `stop`."""

    url: str
    paths: Sequence[str]
    seconds: list[float] = field(default_factory=list)
    """How long each answer took."""
    failures: list[tuple[str, int]] = field(default_factory=list)
    """The paths that were not answered with 200, and the status; 0 for no answer."""
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def looking(self, count: int) -> Iterator[Self]:
        """Have so many people look at random views for the duration of the block."""
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
                if status != 200:
                    self.failures.append((path, status))


def walk(url: str, paths: Sequence[str], people: int) -> None:
    """Have people look at the same views at the same time, one after the other."""

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
