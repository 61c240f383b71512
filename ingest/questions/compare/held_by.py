"""How the ranks of two sides hold a compared tensor, and what difference was to be expected of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workers.store.strict_json import finite_or_none


@dataclass(frozen=True, slots=True)
class HeldBy:
    """How the ranks of both sides hold a tensor that was put together from their pieces."""

    ranks_a: tuple[int, ...]
    ranks_b: tuple[int, ...]
    placement: str
    """`replicated`, `shard 0`, `partial sum`, ...; with that of B behind ` | ` if B has several pieces."""
    certainty: str
    """`certain`, `by marginals`, `agreed`, `told`, `mapped`, `by shape`, `likely` or `open`; see
    `ingest.questions.placement.decide.Certainty`."""
    explanation: str
    """What shows that."""
    limit: float | None = None
    """The relative Euclidean distance that rounding and what the operator read explain; None: not derived."""
    times: float | None = None
    """How many times the limit the distance is; None if it is not known."""
    explained: bool = True
    """Whether what was executed before explains the distance, though it may exceed the limit."""

    def to_dict(self) -> dict[str, Any]:
        """Return a flat row of plain values."""
        ranks = {"ranks_a": list(self.ranks_a), "ranks_b": list(self.ranks_b)}
        figures = {"limit": finite_or_none(self.limit), "times": finite_or_none(self.times)}
        texts = {name: getattr(self, name) for name in ("placement", "certainty", "explanation")}
        return ranks | texts | figures | {"explained": self.explained}
