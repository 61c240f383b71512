"""The two clocks by which a step has been quiet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuietClock:
    """The clock of this process, and that of the file system.

    They are compared only where nothing else is known: a step that is seen for the first time has been quiet
    since its newest change, by the clock of its file system, but at most since the look at which it was not
    there. From then on only what is observed counts.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
