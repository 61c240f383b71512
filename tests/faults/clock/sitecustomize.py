"""Let processes sleep whose clock is shifted: on `PYTHONPATH` next to libfaketime.

`time.sleep` sleeps until a moment of the monotonic clock. libfaketime takes that for a moment of the shifted
clock, also with `FAKETIME_DONT_FAKE_MONOTONIC`, and refuses: `OSError: [Errno 22] Invalid argument`.
"""

import select
import time


def _sleep(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = _sleep  # type: ignore[assignment]  # all callers here pass floats
