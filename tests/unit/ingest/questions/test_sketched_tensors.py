"""The histograms that a question gets, and the errors for a choice without any."""

from pathlib import Path

import pytest

import ingest
from ingest.questions.sketched_tensors import SketchedTensors
from ingest.reader.snapshot import take_snapshot
from workers.errors import UsageError


def test_tensors_come_by_step_rank_and_order_of_execution(sketched_store: Path) -> None:
    tensors = SketchedTensors(take_snapshot(ingest.open_store(sketched_store)), {"name": "Log.*"})
    listed = [(tensor.step, tensor.rank, tensor.key.io) for tensor in tensors]
    assert listed == [(step, rank, io) for step in (1, 2, 3) for rank in (0, 1) for io in ("input", "output")]
    assert tensors.without == 0


def test_a_choice_of_nothing_is_an_error(sketched_store: Path) -> None:
    tensors = SketchedTensors(take_snapshot(ingest.open_store(sketched_store)), {"op_type": "Lgo"})
    with pytest.raises(UsageError, match="no tensor has the op_type 'Lgo'"):
        list(tensors)
