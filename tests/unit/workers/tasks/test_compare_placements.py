"""Jobs over pieces of several ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.npy_files import MadeDump
from tests.operands import in_files, in_store
from workers.arrays.sharded.assembly import Piece, joined
from workers.arrays.sharded.placement_search import Pieces
from workers.tasks import operands
from workers.tasks.compare import (
    PlacedPair,
    PlacementQuestion,
    compare_placed,
    pack,
    run_packed,
    search_placements,
)

WHOLE = np.random.default_rng(0).normal(size=(8, 30)).astype(np.float32)
PARTS = np.split(WHOLE, 2, axis=1)


@pytest.mark.parametrize("limit", [operands.WHOLE_NBYTES, 0])
def test_pieces_in_a_store_against_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(operands, "WHOLE_NBYTES", limit)
    a = tuple(in_store(MadeDump(tmp_path / "a"), tmp_path / "store", *PARTS))
    b = tuple(in_files(MadeDump(tmp_path / "b"), WHOLE))
    question = PlacementQuestion(
        a, b, Pieces(tuple(o.shape for o in a), (0, 1)), Pieces((WHOLE.shape,), (0,))
    )
    (answer,) = run_packed(pack(search_placements, [question]))
    assert str(answer.search.ways[0].a) == "shard 1"
    pair = PlacedPair(a, b, answer.search.ways[0].a.assembly, answer.search.ways[0].b.assembly)
    (outcome,) = compare_placed([pair])
    assert outcome.metrics is not None
    assert (outcome.metrics.bit_equal, outcome.metrics.count) == (True, WHOLE.size)
    assert pair.nbytes == question.nbytes == 2 * WHOLE.nbytes


def test_damage_is_told_and_not_raised(tmp_path: Path) -> None:
    a = tuple(in_store(MadeDump(tmp_path / "a"), tmp_path / "store", *PARTS))
    a = (replace(a[0], digest=b"x" * 16), a[1])
    b = tuple(in_files(MadeDump(tmp_path / "b"), WHOLE))
    whole = joined([Piece(number, operand.shape) for number, operand in enumerate(a)], 1)
    (outcome,) = compare_placed([PlacedPair(a, b, whole, Piece(0, WHOLE.shape))])
    assert outcome.damaged
    assert "digest does not match" in outcome.problem
    question = PlacementQuestion(
        a, b, Pieces(tuple(o.shape for o in a), (0, 1)), Pieces((WHOLE.shape,), (0,))
    )
    (answer,) = search_placements([question])
    assert answer.damaged
    assert answer.search.ways == ()


def test_empty_tensors_are_equal_if_their_types_are(tmp_path: Path) -> None:
    a = tuple(in_files(MadeDump(tmp_path / "a"), np.zeros((0, 3), np.float32)))
    for dtype, equal in ((np.float32, True), (np.int32, False)):
        b = tuple(in_files(MadeDump(tmp_path / np.dtype(dtype).name), np.zeros((0, 3), dtype)))
        (outcome,) = compare_placed([PlacedPair(a, b, Piece(0, (0, 3)), Piece(0, (0, 3)))])
        assert outcome.metrics is not None
        assert (outcome.metrics.bit_equal, outcome.metrics.unequal) == (equal, 0)


def test_text_is_not_taken_for_numbers(tmp_path: Path) -> None:
    a, b = (tuple(in_files(MadeDump(tmp_path / text), np.array([text]))) for text in ("1", "01"))
    (outcome,) = compare_placed([PlacedPair(a, b, Piece(0, (1,)), Piece(0, (1,)))])
    assert outcome.problem == "elements of type <U1 are not numbers"


def test_the_same_elements_are_equal_whether_they_are_read_whole_or_by_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operands, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(operands, "_WINDOW", 8)
    values = WHOLE.astype(">f8")
    a, b = (
        tuple(in_files(MadeDump(tmp_path / order), np.asarray(values, order=order))) for order in ("C", "F")
    )
    (outcome,) = compare_placed([PlacedPair(a, b, Piece(0, WHOLE.shape), Piece(0, WHOLE.shape))])
    assert outcome.metrics is not None
    assert outcome.metrics.bit_equal
