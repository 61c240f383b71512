"""Which steps are compared: what a user names, and which step of A is compared with which step of B."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.reader.choice import named_ranges
from workers.errors import UsageError
from workers.model import StepKey

if TYPE_CHECKING:
    from ingest.questions.compare.sources import Source

_NUMBER = re.compile(r"\d{1,18}")
_NAMED = re.compile(r"(rank|step)=(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a user names as one side of a comparison: a directory or URL, and maybe one rank and one step."""

    where: str
    rank: int | None = None
    step: int | None = None

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


def ranks_of(side: Source) -> list[int]:
    """Return the ranks of which a side has a complete step, in order."""
    return sorted({key.rank for key in side.keys})


def _has(side: Source) -> str:
    steps = {key.step for key in side.keys if key.step is not None}
    return f"{named_ranges('rank', ranks_of(side))} and {named_ranges('step', steps)}"


@dataclass(frozen=True, slots=True)
class StepPairing:
    """Which steps are compared with which, and what only one side has. All in order of step, then rank."""

    groups: tuple[tuple[tuple[StepKey, ...], tuple[StepKey, ...]], ...]
    """Steps of A, and those of B that they are compared with: one of a rank, or that of all ranks."""
    only_a: tuple[StepKey, ...] = ()
    only_b: tuple[StepKey, ...] = ()
    half_complete: tuple[StepKey, ...] = ()
    """Steps that both have, and that are complete on one side alone; named by that side."""
    together: str = ""
    """Of which ranks tensors are put together; "" if ranks are compared one by one."""

    @property
    def notes(self) -> list[str]:
        """What ranks were put together; or which ranks of other numbers are compared with each other."""
        if self.together:
            return [f"tensors were put together from {self.together} (see --rank-by-rank)"]
        ranks = dict.fromkeys((a.rank, b.rank) for (a,), (b,) in self.groups if a.rank != b.rank)
        return [f"rank {a} of A is compared with rank {b} of B" for a, b in ranks]


def pair_steps(a: Source, b: Source) -> StepPairing:
    """Pair the steps of each rank of A with those of a rank of B.

    A single rank on either side is compared whatever the numbers of the two; several ranks are compared by
    number. Steps are compared by number, unless one step is named on either side.

    Raises:
        UsageError: A and B have no rank and step in common.
    """
    rank_of_b = _rank_of_b(ranks_of(a), ranks_of(b))
    pairs = _pairs(a, b, rank_of_b)
    if not pairs:
        raise UsageError(
            f"{a.label} and {b.label} have no rank and step in common",
            hint=f"A has {_has(a)}, B has {_has(b)}. Name what to compare: STORE@RANK,STEP.",
        )
    missed_a = _missed(a, b.selection, [key for key, _ in pairs])
    missed_b = _missed(b, a.selection, [key for _, key in pairs])
    half_a = _also_in(b, missed_a, rank_of_b)
    half_b = _also_in(a, missed_b, {rank_b: rank_a for rank_a, rank_b in rank_of_b.items()})
    return StepPairing(
        tuple(((key,), (other,)) for key, other in pairs),
        tuple(key for key in missed_a if key not in half_a),
        tuple(key for key in missed_b if key not in half_b),
        (*half_a, *half_b),
    )


def _rank_of_b(a: list[int], b: list[int]) -> dict[int, int]:
    return dict(zip(a, b if len(a) == len(b) == 1 else a, strict=True))


def _pairs(a: Source, b: Source, rank_of_b: Mapping[int, int]) -> list[tuple[StepKey, StepKey]]:
    are_named = a.selection.step is not None and b.selection.step is not None
    step_of_b = {a.selection.step: b.selection.step} if are_named else {}
    others = [StepKey(rank_of_b[key.rank], step_of_b.get(key.step, key.step)) for key in a.keys]
    in_b = set(b.keys)
    return [(key, other) for key, other in zip(a.keys, others, strict=True) if other in in_b]


def pair_runs(a: Source, b: Source, *, include_partial: bool) -> StepPairing:
    """Pair the steps of all ranks of A with those of all ranks of B, by number unless one is named.

    A step that was left out of a rank when its side was opened has no keys on that side.

    Raises:
        UsageError: A and B have no step in common.
    """
    steps_a, steps_b = (
        {key.step for key in (*side.keys, *(left.key for left in side.left_out)) if key.step is not None}
        for side in (a, b)
    )
    named = a.selection.step, b.selection.step
    pairs = [(step, step) for step in sorted(steps_a & steps_b)]
    if named[0] is not None and named[1] is not None:
        pairs = [(named[0], named[1])]
    if not pairs:
        raise UsageError(
            f"{a.label} and {b.label} have no step in common",
            hint=f"A has {_has(a)}, B has {_has(b)}. Name what to compare: STORE@step=STEP.",
        )
    return StepPairing(
        tuple(
            (_of_all_ranks(a, step_a, include_partial), _of_all_ranks(b, step_b, include_partial))
            for step_a, step_b in pairs
        ),
        _missed_by_all(a, {step for step, _ in pairs}, b.selection),
        _missed_by_all(b, {step for _, step in pairs}, a.selection),
        together=f"{named_ranges('rank', ranks_of(a))} of A and {named_ranges('rank', ranks_of(b))} of B",
    )


def _of_all_ranks(side: Source, step: int, include_partial: bool) -> tuple[StepKey, ...]:  # noqa: FBT001
    keys = tuple(StepKey(rank, step) for rank in ranks_of(side))
    if any(left.key.step == step for left in side.left_out):
        return ()  # what is missing of it was named when the side was opened
    there = set(side.keys)
    return tuple(key for key in keys if key in there) if include_partial else keys


def _missed_by_all(side: Source, compared: AbstractSet[int], other: Selection) -> tuple[StepKey, ...]:
    """Return the steps that the other side lacks, once for each; none if a step was named there."""
    if other.step is not None:
        return ()
    lacking = sorted({key.step for key in side.keys if key.step is not None} - compared)
    return tuple(StepKey(min(ranks_of(side)), step) for step in lacking)


def _missed(side: Source, other: Selection, compared: list[StepKey]) -> list[StepKey]:
    """Return the steps of a side that the other side lacks, as far as the user asked for them there.

    Who names one step of the other side does not miss any other step; who names one rank of it misses only
    steps of the rank that it is compared with.
    """
    if other.step is not None:
        return []
    paired = set(compared)
    rank = None if other.rank is None else compared[0].rank
    return [key for key in side.keys if key not in paired and rank in (None, key.rank)]


def _also_in(side: Source, keys: Iterable[StepKey], ranks: Mapping[int, int]) -> list[StepKey]:
    """Return the keys that a side has left out, of which `ranks` gives the rank for each rank."""
    left_out = {step.key for step in side.left_out}
    return [key for key in keys if StepKey(ranks.get(key.rank, key.rank), key.step) in left_out]
