"""Where it began: the first operator that gave NaN, Inf or an overflow, over all ranks and steps."""

from ingest.questions.origin.answer import (
    OriginAnswer,
    OriginCollective,
    OriginLater,
    OriginOperator,
    OriginSpread,
    OriginTensor,
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
    "origin",
]
