"""What a user names on the command line: a store or a dump, and a rank and step of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from workers.errors import UsageError
from workers.model import StepKey

_NUMBER = re.compile(r"\d{1,18}")
_NAMED = re.compile(r"(rank|step)=(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Selection:
    """One side of a comparison."""

    where: str
    """A directory or URL."""
    rank: int | None = None
    """None for all ranks."""
    step: int | None = None
    """None for all steps."""

    def includes(self, key: StepKey) -> bool:
        """Return whether a step is selected."""
        return self.rank in (None, key.rank) and self.step in (None, key.step)

    def __str__(self) -> str:
        parts = [f"{name}={n}" for name, n in (("rank", self.rank), ("step", self.step)) if n is not None]
        return self.where + (f"@{','.join(parts)}" if parts else "")


def parse_selection(text: str) -> Selection:
    """Read `run.zarr`, `run.zarr@RANK`, `run.zarr@RANK,STEP`, `run.zarr@step=STEP` or `...@rank=R,step=S`.

    A path that exists is taken as it is written, `@` and all; so is a URL whose last `@` is followed by
    something with a dot, as in `s3://bucket/run@2.zarr`.

    Raises:
        UsageError: the part after `@` is neither a rank nor a step.
    """
    where, at, choice = text.rpartition("@")
    # An `@` before a `/` belongs to the URL: s3://user@host/run.zarr
    is_name = "/" in choice or ("://" in text and "." in choice)
    if not at or not where or is_name or _exists(text):
        return Selection(text)
    numbers = _parse_numbers(choice)
    if numbers is None:
        raise UsageError(
            f"{text}: {choice!r} is not a rank and step",
            hint="Write STORE@RANK,STEP, such as run.zarr@0,3, or run.zarr@rank=0, run.zarr@step=3.",
        )
    return Selection(where, numbers.get("rank"), numbers.get("step"))


def _parse_numbers(choice: str) -> dict[str, int] | None:
    """Return rank and step in `0,3`, `0`, `step=3` or `rank=0,step=3`; None if the text is none of these."""
    numbers: dict[str, int] = {}
    for place, part in enumerate(choice.split(",")):
        name, number = ("rank", "step")[place] if place < 2 else "", part.strip()
        if named := _NAMED.fullmatch(number):
            name, number = named.groups()
        if not name or not _NUMBER.fullmatch(number) or name in numbers:
            return None
        numbers[name] = int(number)
    return numbers


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or not a name at all
        return False
