"""Back-pressure: whether the disk of a dump is nearly full, and when it will be full. Pure arithmetic."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from ingest.units import parse_size
from workers.events import Event


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The size of a file system, and what may still be written to it without privileges."""

    free_nbytes: int
    nbytes: int
    free_inodes: int
    inodes: int
    """0 if the file system does not count them."""


def space_at(path: Path) -> DiskSpace | None:
    """Return the space of the file system that holds `path`; None if `path` does not exist."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(
        free_nbytes=status.f_bavail * status.f_frsize,
        nbytes=status.f_blocks * status.f_frsize,
        free_inodes=status.f_favail,
        inodes=status.f_files,
    )


#: What to do with a backlog while the disk is nearly full; see the setting `under_pressure`.
Policy: TypeAlias = Literal["keep", "newest", "statistics"]

#: Pressure ends when this multiple of the threshold is free, so that it does not come and go with each file.
_RELIEF = 1.25
#: How far a forecast looks back, and the least time between its samples: 180 samples at most.
_WINDOW_S = 1800.0
_SAMPLE_S = 10.0
#: A forecast looks ahead at most this many times as far as it looks back, and at most `FORECAST_S`.
_REACH = 10.0
FORECAST_S = 4 * 3600.0

_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Threshold:
    """How much of a disk should stay free: a share of its bytes and of its inodes, or a number of bytes."""

    share: float = 0.0
    nbytes: int = 0

    def freedom(self, space: DiskSpace) -> float:
        """Return the free space as a multiple of the threshold; below 1 the disk is nearly full."""
        ratios = []
        if wanted := max(self.share * space.nbytes, self.nbytes):
            ratios.append(space.free_nbytes / wanted)
        if self.share and space.inodes:
            ratios.append(space.free_inodes / (self.share * space.inodes))
        return min(ratios, default=float("inf"))


def parse_threshold(text: str) -> Threshold:
    """Return the threshold that a text such as `10%` or `200GB` names.

    Raises:
        ValueError: it is neither a share nor a number of bytes, or the share is not below 100%.
    """
    if match := _SHARE.fullmatch(text):
        share = float(match[1]) / 100
        if share < 1:
            return Threshold(share=share)
    else:
        with suppress(ValueError):
            return Threshold(nbytes=parse_size(text))
    message = "must be a share such as 10%, below 100%, or bytes such as 200GB"
    raise ValueError(message)


@dataclass(slots=True)
class Trend:
    """When a disk will be full, by the straight line (least squares) through recent samples."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    """Time and free bytes, oldest first."""

    def add(self, at: float, free_nbytes: int) -> None:
        """Add the free bytes at a time, in seconds, unless it is too soon after the last sample."""
        if self._samples and at - self._samples[-1][0] < _SAMPLE_S:
            return
        self._samples.append((at, free_nbytes))
        while at - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()

    def full_in_s(self) -> float | None:
        """Return the seconds from the last sample until nothing is free; None if that is not foreseeable."""
        if len(self._samples) < 2:
            return None
        last, _ = self._samples[-1]
        times = [at - last for at, _ in self._samples]
        slope, free_at_last = statistics.linear_regression(times, [free for _, free in self._samples])
        if slope >= 0:
            return None
        full_in_s = max(-free_at_last / slope, 0.0)
        return full_in_s if full_in_s <= min(_REACH * -times[0], FORECAST_S) else None


@dataclass(frozen=True, slots=True)
class DiskSeen(Event):
    """How full the disk of the dump is at one moment."""

    space: DiskSpace
    policy: Policy
    under_pressure: bool
    full_in_s: float | None
    """When it will be full; None if that is not foreseeable."""

    @property
    def leave_out_tensors(self) -> str:
        """Why the tensors of steps are not stored now; "" if they are."""
        if not self.under_pressure or self.policy != "statistics":
            return ""
        share = self.space.free_nbytes / max(self.space.nbytes, 1)
        return f"the disk of the dump had {share:.1%} of its bytes free (under_pressure: statistics)"


@dataclass(slots=True)
class Pressure:
    """Decides whether the disk is nearly full. All state is a cache: losing it only costs a forecast."""

    policy: Policy = "keep"
    threshold: Threshold = Threshold(share=0.1)
    clock: Callable[[], float] = time.monotonic
    trend: Trend = field(default_factory=Trend)
    _active: bool = False

    def judge(self, space: DiskSpace) -> DiskSeen:
        """Return whether the disk is nearly full with this space."""
        self._active = self.threshold.freedom(space) < (_RELIEF if self._active else 1.0)
        self.trend.add(self.clock(), space.free_nbytes)
        return DiskSeen(space, self.policy, self._active, self.trend.full_in_s())
