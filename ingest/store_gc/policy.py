"""What `gc` removes and what it keeps, as a user says it."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from workers.errors import UsageError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
DAY_S = 86400.0
#: The smallest value that makes sense, by field.
_LOWEST = {
    "older_than_s": 0,
    "keep_last": 1,
    "max_bytes": 0,
    "tensors_around_anomalies": 0,
    "grace_s": 0,
}


@dataclass(frozen=True, slots=True)
class GcPolicy:
    """Which steps and tensors go. The default removes only previous generations and remains of crashes."""

    older_than_s: float | None = None
    """Remove steps that were committed longer ago than this."""
    keep_last: int | None = None
    """Never touch this many of the newest steps of each rank, by step number. If no other field gives a
    reason to remove something (age, size, distance from anomalies), all other steps are removed."""
    max_bytes: int | None = None
    """Remove steps, lowest number first and on all ranks at once, until the store is not larger than this."""
    tensors_around_anomalies: int | None = None
    """Remove the tensors of steps that are farther than this many dumped steps from any anomaly."""
    keep_anomalous: bool = False
    """Never remove a step that has an anomaly on any rank."""
    grace_s: float = DAY_S
    """How long objects that no commit points to stay after the last write next to them."""
    ranks: tuple[int, ...] | None = None
    """With `steps`: remove exactly the steps of these ranks, and nothing else; of all ranks if None."""
    steps: tuple[int, ...] | None = None
    """The same for the numbers of the steps. Excludes all other reasons and all protections."""

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: a number is out of range.
        """
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= lowest):
                raise UsageError(
                    f"{name} is {value!r}, which is out of range", hint=f"Give a number of at least {lowest}."
                )
        others = (self.older_than_s, self.keep_last, self.max_bytes, self.tensors_around_anomalies)
        if self.is_choice and (others != (None,) * len(others) or self.keep_anomalous):
            raise UsageError(
                "chosen ranks and steps exclude other reasons to remove or to keep something",
                hint="Give --rank and --step without --older-than, --keep-last, --max-size, --keep-anomalous "
                "and --tensors-around-anomalies.",
            )

    @property
    def is_choice(self) -> bool:
        """Whether steps go because they were chosen by rank and number."""
        return self.ranks is not None or self.steps is not None

    def chooses(self, rank: int, step: int) -> bool:
        """Return whether a step is among the chosen ones."""
        of_rank = self.ranks is None or rank in self.ranks
        return self.is_choice and of_rank and (self.steps is None or step in self.steps)

    @property
    def removes_steps(self) -> bool:
        """Whether there is a reason for which steps or their tensors go."""
        reasons = (self.older_than_s, self.keep_last, self.max_bytes, self.tensors_around_anomalies)
        return self.is_choice or reasons != (None,) * len(reasons)

    @property
    def keeps_only_newest(self) -> bool:
        """Whether a step goes just because it is not among the newest of its rank."""
        others = (self.older_than_s, self.max_bytes, self.tensors_around_anomalies)
        return self.keep_last is not None and others == (None, None, None)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as `90s`, `45m`, `12h`, `30d` or `2w`.

    Raises:
        UsageError: the text is not a number with one of these units.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(
            f"{text!r} is not a valid duration", hint="Write a number and a unit: 90s, 45m, 12h, 30d, 2w."
        )
    return float(match[1]) * _UNITS_S[match[2]]


def duration(seconds: float) -> str:
    """Write a duration in the largest unit that gives a whole number."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS_S[unit] == 0:
            return f"{seconds / _UNITS_S[unit]:.0f}{unit}"
    return f"{seconds:g}s"
