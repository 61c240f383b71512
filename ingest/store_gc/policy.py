"""What is to be kept, in words of a user."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from workers.errors import UsageError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class GcPolicy:
    """Which steps and tensors go. With nothing said, only previous generations and remains of crashes do."""

    older_than_s: float | None = None
    """Steps committed longer ago than this go."""
    keep_last: int | None = None
    """The newest steps of each rank, by number, are never touched. All others are removed only where nothing
    else says what goes: no age, no size, no distance from anomalies."""
    max_bytes: int | None = None
    """Steps go, oldest number first and on all ranks at once, until the store is no larger than this."""
    tensors_around_anomalies: int | None = None
    """Tensors go from steps that are farther than so many dumped steps from any step with an anomaly."""
    keep_anomalous: bool = False
    """Steps with an anomaly on any rank are never removed."""
    grace_s: float = DAY_S
    """What no commit points to stays for so long after something was last written there."""

    def __post_init__(self) -> None:
        """Refuse what nobody can mean.

        Raises:
            UsageError: a number is out of range.
        """
        least = {
            "older_than_s": 0,
            "keep_last": 1,
            "max_bytes": 0,
            "tensors_around_anomalies": 0,
            "grace_s": 0,
        }
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= lowest):
                raise UsageError(f"{name} = {value!r} makes no sense", hint=f"It must be {lowest} or more.")

    @property
    def keeps_only_newest(self) -> bool:
        """Whether steps go for no other reason than that they are not among the newest."""
        others = (self.older_than_s, self.max_bytes, self.tensors_around_anomalies)
        return self.keep_last is not None and others == (None, None, None)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> GcPolicy:
        """Return the policy that `to_dict` wrote.

        Raises:
            ValueError: it is something else.
        """
        if row.keys() != {one.name for one in fields(cls)}:
            raise ValueError("policy")
        if type(row["keep_anomalous"]) is not bool or type(row["grace_s"]) not in (int, float):
            raise ValueError("policy")
        rest = [row[name] for name in row.keys() - {"keep_anomalous"}]
        if not all(value is None or type(value) in (int, float) for value in rest):
            raise ValueError("policy")
        return cls(**row)


def parse_duration(text: str) -> float:
    """Return seconds of `90s`, `45m`, `12h`, `30d` or `2w`.

    Raises:
        UsageError: it is none of these.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(
            f"{text!r} is no duration", hint="Write a number and a unit: 90s, 45m, 12h, 30d, 2w."
        )
    return float(match[1]) * _UNITS_S[match[2]]


def duration(seconds: float) -> str:
    """Write a duration in the largest unit that gives a round number."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS_S[unit] == 0:
            return f"{seconds / _UNITS_S[unit]:.0f}{unit}"
    return f"{seconds:g}s"
