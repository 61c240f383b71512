"""The results of a benchmark: measures that compare two contenders, and tables of other figures."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

_Contender = TypeVar("_Contender")
_Figure = TypeVar("_Figure")


class Ratio(StrEnum):
    """How the ratio of two figures is formed."""

    TIMES_AS_FAST = "times as fast"
    """The other contender's seconds divided by ours; the floor is a minimum."""
    SHARE = "share"
    """Our figure divided by the other contender's; the floor is a maximum."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Our figures and those of another contender, round by round, taken shortly after one another."""

    name: str
    against: str
    unit: str
    ours: tuple[float, ...]
    other: tuple[float, ...]
    ratio_is: Ratio = Ratio.TIMES_AS_FAST
    floor: float | None = None
    """The required minimum of the ratio, or of a share the maximum. None: nothing is required."""
    note: str = ""

    def __post_init__(self) -> None:
        """Check that rounds pair.

        Raises:
            ValueError: the contenders have different numbers of rounds, or none.
        """
        if not self.ours or len(self.ours) != len(self.other):
            raise ValueError(
                f"{self.name}: {len(self.ours)} rounds of ours, {len(self.other)} of {self.against}"
            )

    @property
    def ratio(self) -> float:
        """The median over the ratios of all rounds, so that what slows down a whole round has no effect."""
        pairs = list(zip(self.ours, self.other, strict=True))
        if self.ratio_is is Ratio.TIMES_AS_FAST:
            return statistics.median(other / ours for ours, other in pairs)
        return statistics.median(ours / other for ours, other in pairs)

    @property
    def reached(self) -> bool | None:
        """Whether the floor is reached; None without a floor."""
        if self.floor is None:
            return None
        return self.ratio >= self.floor if self.ratio_is is Ratio.TIMES_AS_FAST else self.ratio <= self.floor

    def row(self) -> tuple[str, ...]:
        """Return one cell for each of `HEADINGS`."""
        floor = ""
        if self.floor is not None:
            sign = "≥" if self.ratio_is is Ratio.TIMES_AS_FAST else "≤"
            floor = f"{sign} {self.floor:g}"
        return (
            self.name,
            self.against,
            f"{shown(statistics.median(self.ours))} {self.unit}",
            f"{shown(statistics.median(self.other))} {self.unit}",
            f"{self.ratio:.3f}" if 0.1 <= self.ratio < 10 else shown(self.ratio),
            floor,
            {True: "yes", False: "NO", None: ""}[self.reached],
        )

    def to_json(self) -> dict[str, Any]:
        """Return all fields, with all rounds, as JSON can encode them."""
        return {
            "name": self.name,
            "against": self.against,
            "unit": self.unit,
            "ours": list(self.ours),
            "other": list(self.other),
            "ratio_is": self.ratio_is.value,
            "ratio": self.ratio,
            "floor": self.floor,
            "reached": self.reached,
            "note": self.note,
        }


HEADINGS = ("measure", "against", "ours", "other", "ratio", "floor", "reached")


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that compare more than two contenders, or none."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON can encode them."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "note": self.note,
        }


def shown(value: float) -> str:
    """Return a figure with about three digits: 1240, 12.4, 0.0124."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def seconds(run: Callable[[], object]) -> float:
    """Return how long `run` takes, after everything written before has reached the disk."""
    os.sync()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def seconds_each(run: Callable[[], object], at_least_s: float = 0.3) -> float:
    """Return the median duration of calls that together last at least `at_least_s`."""
    run()
    durations: list[float] = []
    while sum(durations) < at_least_s:
        started = time.perf_counter()
        run()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def in_turns(
    rounds: int, contenders: Mapping[_Contender, Callable[[], _Figure]]
) -> dict[_Contender, tuple[_Figure, ...]]:
    """Return the figures of each contender. They take turns, so a disturbance affects all of them alike."""
    figures: dict[_Contender, list[_Figure]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            figures[name].append(run())
    return {name: tuple(of_rounds) for name, of_rounds in figures.items()}


def median(figures: Sequence[float]) -> float:
    """Return the median of some figures."""
    return statistics.median(figures)
