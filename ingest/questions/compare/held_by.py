"""How the ranks of two sides hold a compared tensor."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.reader.plain import Plain


@dataclass(frozen=True, slots=True)
class HeldBy(Plain):
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
