"""The tensors that a comparison lists, of which there are not too many."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ingest.questions.compare import Verdict, listed_tensors
from ingest.questions.compare.compared_tensor import ComparedTensor
from ingest.questions.compare.listed_tensors import ListedTensors
from workers.model import StepKey

ROW = ComparedTensor(
    StepKey(0, 0), StepKey(0, 0), 0, "a", "a", "", "Add", "output", "int8", "int8", (), (), Verdict.CLOSE
)


def rows(verdicts: Sequence[Verdict]) -> list[ComparedTensor]:
    return [replace(ROW, number=number, verdict=verdict) for number, verdict in enumerate(verdicts)]


def test_the_worst_are_listed_in_the_order_in_which_they_were_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_tensors, "MAX_LISTED", 2)
    kept = ListedTensors(keep_equal=False)
    kept.add(rows([Verdict.UNKNOWN, Verdict.CLOSE, Verdict.DIFFERENT, Verdict.CLOSE, Verdict.CLOSE]))
    kept.add([replace(ROW, number=7, verdict=Verdict.SHAPE), replace(ROW, number=8, damaged=True)])
    assert [row.number for row in kept.listed()] == [2, 7]
    assert (kept.dropped, kept.damaged) == (5, 1)
    assert kept.notes == ["only the 2 worst tensors are listed, 5 others are only counted"]
