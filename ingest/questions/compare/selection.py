"""What a user names: a store or a dump, and which rank and step of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from workers.errors import UsageError

_NUMBER = re.compile(r"\d{1,18}")
_NAMED = re.compile(r"(rank|step)=(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Selection:
    """One side of a comparison; rank and step are None for all that there are."""

    where: str
    """A directory or URL."""
    rank: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        parts = [f"{name}={n}" for name, n in (("rank", self.rank), ("step", self.step)) if n is not None]
        return self.where + (f"@{','.join(parts)}" if parts else "")


def parse(text: str) -> Selection:
    """Read `run.zarr`, `run.zarr@RANK`, `run.zarr@RANK,STEP`, `run.zarr@step=STEP` or `...@rank=R,step=S`.

    A path that exists as it is written is taken as it is, `@` and all; so is a URL whose last `@` is followed
    by something with a point, as in `s3://bucket/run@2.zarr`.

    Raises:
        UsageError: what stands behind `@` is neither a rank nor a step.
    """
    where, at, choice = text.rpartition("@")
    # An `@` before a `/` belongs to the URL: s3://user@host/run.zarr
    is_name = "/" in choice or ("://" in text and "." in choice)
    if not at or not where or is_name or _exists(text):
        return Selection(text)
    found: dict[str, int] = {}
    for place, part in enumerate(choice.split(",")):
        name, number = ("rank", "step")[place] if place < 2 else "", part.strip()
        if named := _NAMED.fullmatch(number):
            name, number = named.groups()
        if not name or not _NUMBER.fullmatch(number) or name in found:
            raise UsageError(
                f"{text}: {choice!r} names no rank and step",
                hint="Write STORE@RANK,STEP, such as run.zarr@0,3, or run.zarr@rank=0, run.zarr@step=3.",
            )
        found[name] = int(number)
    return Selection(where, found.get("rank"), found.get("step"))


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or no name at all
        return False
