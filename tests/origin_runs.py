"""Values and questions for tests of `ingest.origin` on runs made by hand."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np

import ingest
from ingest.questions.origin.answer import OriginAnswer
from tests.stores import ingest_directly, numbers

NAN, INF = np.nan, np.inf
CLEAN = numbers(1, 2, 3)
GOOD = numbers(4, 5, 6)
BAD = numbers(7, NAN, 8)
WORSE = numbers(NAN, NAN, 9)
MASKED = numbers(0, -INF, -INF)


class Ask(Protocol):
    """Ingests the run as it is now, and asks for the origin."""

    def __call__(self, **options: Any) -> OriginAnswer: ...


def origin_of(dump: Path, store: Path, **options: Any) -> OriginAnswer:
    """Ingest a dump, and return the origin."""
    ingest_directly(dump, store)
    return ingest.origin(ingest.open_store(store), **options)


def operator(answer: OriginAnswer) -> tuple[int | None, int | None, str | None]:
    """Return rank, step and operator name of an answer."""
    return answer.rank, answer.step, answer.op_name
