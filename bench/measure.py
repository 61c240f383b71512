"""What a benchmark yields: measures of two contenders, and tables of anything else."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Ratio(StrEnum):
    """How two figures are compared."""

    TIMES_AS_FAST = "times as fast"
    """The other's seconds by ours: a floor is the least."""
    SHARE = "share"
    """Our figure by the other's: a floor is the most."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Ours against another, in as many rounds: figure by figure from the same moment of one run."""

    name: str
    against: str
    unit: str
    ours: tuple[float, ...]
    other: tuple[float, ...]
    ratio_is: Ratio = Ratio.TIMES_AS_FAST
    floor: float | None = None
    """The least ratio that is asked for; of a share, the most. None where nothing is."""
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse rounds that do not pair."""
        if not self.ours or len(self.ours) != len(self.other):
            message = f"{self.name}: {len(self.ours)} rounds of ours, {len(self.other)} of {self.against}"
            raise ValueError(message)

    @property
    def ratio(self) -> float:
        """The median of the ratios of the rounds: what slows a whole round down does not count."""
        pairs = list(zip(self.ours, self.other, strict=True))
        if self.ratio_is is Ratio.TIMES_AS_FAST:
            return statistics.median(other / ours for ours, other in pairs)
        return statistics.median(ours / other for ours, other in pairs)

    @property
    def reached(self) -> bool | None:
        """Whether the floor is reached; None where there is none."""
        if self.floor is None:
            return None
        return self.ratio >= self.floor if self.ratio_is is Ratio.TIMES_AS_FAST else self.ratio <= self.floor

    def row(self) -> tuple[str, ...]:
        """Return the cells of `HEADINGS`."""
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
        """Return everything, all rounds included."""
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
    """Figures that compare more than two, or nothing."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return everything."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "note": self.note,
        }


def shown(value: float) -> str:
    """Write a figure with three digits: 1240, 12.4, 0.0124."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def seconds(run: Callable[[], object]) -> float:
    """Return what `run` takes, when nothing that was written before is on its way to the disk."""
    os.sync()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def seconds_each(run: Callable[[], object], at_least_s: float = 0.3) -> float:
    """Return what one of many calls takes: the median over calls that together last `at_least_s`."""
    run()
    took: list[float] = []
    while sum(took) < at_least_s:
        started = time.perf_counter()
        run()
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def in_turns(rounds: int, contenders: Mapping[str, Callable[[], float]]) -> dict[str, tuple[float, ...]]:
    """Return the figures of each contender, round by round: what disturbs a round disturbs all of them."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            figures[name].append(run())
    return {name: tuple(found) for name, found in figures.items()}


def median(figures: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(figures)
