"""What is heard of each answer of S3: that it came, and the time that it tells."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from workers import events
from workers.store.backends.deadline import made_progress
from workers.store.events import StoreClockSeen

#: How often the time in the answers is compared with the clock of this host, in seconds.
_COMPARED_S = 10.0
_NAME = "_dump_ingest_listener"


class S3Listener:
    """Listens to the answers of one S3 client, refusals included."""

    def __init__(self) -> None:
        self._compared_at = float("-inf")

    @classmethod
    def attach(cls, file_system: Any) -> None:
        """Listen to a file system of s3fs that has not asked anything yet, unless somebody does."""
        if hasattr(file_system, _NAME) or file_system.session is not None:
            return
        from aiobotocore.session import AioSession  # deferred: with s3fs, which takes 0.4 s to import

        listener = cls()
        session = AioSession(**file_system.kwargs)
        session.register("response-received.s3", listener.receive)
        file_system.session = session
        setattr(file_system, _NAME, listener)

    def receive(self, response_dict: Mapping[str, Any] | None = None, **_: object) -> None:
        """Note an answer. Called by botocore for each attempt, in the task that waits for it."""
        if response_dict is None:
            return
        made_progress()
        now = time.monotonic()
        if now - self._compared_at >= _COMPARED_S:
            self._compared_at = now
            ahead_s = seconds_ahead(response_dict["headers"])
            if ahead_s is not None:
                events.emit(StoreClockSeen(ahead_s))


def seconds_ahead(headers: Mapping[str, str]) -> float | None:
    """Return how far the clock of this host is ahead of the time in the headers of an answer that just came.

    None if they do not tell it. Less than a second and a half counts as none: the time is in whole seconds.
    """
    text = headers.get("date") or headers.get("Date")
    try:
        ahead_s = time.time() - parsedate_to_datetime(text or "").timestamp()
    except ValueError:
        return None
    return 0.0 if -0.5 <= ahead_s <= 1.5 else round(ahead_s, 1)
