"""Pausing the collector of reference cycles while many objects are made that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Pauses:
    """How many pauses there are, in all threads."""

    count: int = 0
    was_enabled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_pauses = _Pauses()


@contextmanager
def collections_paused() -> Iterator[None]:
    """Collect no reference cycles meanwhile, in any thread; not for anything that makes many of them.

    Each object that stays lets the collector visit all of the process the sooner: for the rows of a step that
    is compared, this takes as long as making them. Pauses may nest, and overlap in threads.
    """
    with _pauses.lock:
        if not _pauses.count:
            _pauses.was_enabled = gc.isenabled()
            gc.disable()
        _pauses.count += 1
    try:
        yield
    finally:
        with _pauses.lock:
            _pauses.count -= 1
            if not _pauses.count and _pauses.was_enabled:
                gc.enable()
