"""The origin of NaN, Inf and overflows: the first operator that produced them, over all ranks and steps."""

from ingest.questions.origin.answer import (
    OriginAnswer,
    OriginCollective,
    OriginLater,
    OriginOperator,
    OriginSpread,
    OriginTensor,
    SpreadEdge,
    SpreadGraph,
    SpreadNode,
)
from ingest.questions.origin.search import CAUSES, origin

__all__ = [
    "CAUSES",
    "OriginAnswer",
    "OriginCollective",
    "OriginLater",
    "OriginOperator",
    "OriginSpread",
    "OriginTensor",
    "SpreadEdge",
    "SpreadGraph",
    "SpreadNode",
    "origin",
]
