"""How the ranks of two sides hold a compared tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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

    def to_dict(self) -> dict[str, Any]:
        """Return a flat row of plain values."""
        ranks = {"ranks_a": list(self.ranks_a), "ranks_b": list(self.ranks_b)}
        texts = {name: getattr(self, name) for name in ("placement", "certainty", "explanation")}
        return ranks | texts
