"""Two programs that ran different operators: how many both have, and what became of the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ingest.reader.text import counted


class Why(StrEnum):
    """What became of a call that only one side has."""

    RECOMPUTED = "recomputed"
    """Another call of its side has the same result from the same inputs."""
    FUSED = "fused"
    """The other side does it in another call, or in one before that which is not in the dump."""
    MOVES = "moves"
    """It passes elements on as they are."""
    CONTAINS = "contains"
    """It is a module or cell, and operators in it are compared."""
    UNUSED = "unused"
    """Its side reads nothing of what it writes."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OperatorGap:
    """An operator that only one side has, and what became of it."""

    side: str
    """`A` or `B`."""
    name: str
    """`type.name`."""
    why: Why
    of: str = ""
    """The operator that it was fused into, on the other side; or of which it has the result, on its own."""

    def __str__(self) -> str:
        """Describe what became of it, as a sentence without its subject."""
        if self.why is Why.FUSED:
            return f"{'B' if self.side == 'A' else 'A'} does it in {self.of}, or right before"
        if self.why is Why.RECOMPUTED:
            return f"computes {self.of} again"
        texts = {
            Why.MOVES: "passes elements on as they are",
            Why.CONTAINS: "a module: what runs in it is compared",
            Why.UNUSED: "nothing reads its output",
        }
        return texts.get(self.why, "")


@dataclass(frozen=True, slots=True)
class Programs:
    """The operators of A and B, in the step in which they have most."""

    operators_a: int
    operators_b: int
    common: int
    """How many of A are the same as one of B."""
    gaps: tuple[OperatorGap, ...] = ()
    """The others, over all steps."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "operators_a": self.operators_a,
            "operators_b": self.operators_b,
            "common": self.common,
            "gaps": [asdict(gap) | {"says": str(gap)} for gap in self.gaps],
        }

    def __str__(self) -> str:
        """Return a sentence, such as `A ran 36 operators, B 16, and 15 are the same; ...`."""
        ran = counted(self.operators_a, "operator")
        texts = [f"A ran {ran}, B {self.operators_b}, and {self.common} are the same"]
        for side in ("A", "B"):
            whys = Counter(gap.why for gap in self.gaps if gap.side == side)
            counts = ", ".join(
                f"{whys[why]} {_WORD.get(why, _WORDS[why]) if whys[why] == 1 else _WORDS[why]}"
                for why in Why
                if whys[why]
            )
            texts += [f"only in {side}: {counts}"] * bool(counts)
        return "; ".join(texts)


_WORDS = {
    Why.FUSED: "fused",
    Why.RECOMPUTED: "recomputed",
    Why.MOVES: "that only move elements",
    Why.CONTAINS: "modules",
    Why.UNUSED: "that nothing reads",
    Why.UNKNOWN: "others",
}
#: The same of one.
_WORD = {Why.MOVES: "that only moves elements", Why.CONTAINS: "module", Why.UNKNOWN: "other"}
