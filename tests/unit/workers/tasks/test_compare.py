"""Pairs of tensors: what is compared, and what is said of damage."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import open_store
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, plan_all, tensor_name
from workers.arrays.sharded.assembly import Piece
from workers.arrays.sharded.placement_search import Pieces
from workers.model import StepKey
from workers.store.model import RowKind
from workers.tasks import compare, operands
from workers.tasks.compare import (
    Pair,
    PlacedPair,
    PlacementQuestion,
    compare_pairs,
    compare_placed,
    each,
    pack,
    run_packed,
    search_placement,
)
from workers.tasks.operands import InFile, Operand, Stored

# Make the operands of comparisons: tensors in dump files and in stores.


def in_files(dump: MadeDump, *tensors: np.ndarray[Any, Any]) -> list[Operand]:
    """Write tensors into a dump, and return them as operands in its files."""
    for slot, values in enumerate(tensors):
        dump.add(values, tensor_name(slot=slot, time=slot + 1))
    (plan,) = plan_all(dump.root, dump.root.parent / "unused.zarr")
    operands = []
    for entry in sorted(plan.entries, key=lambda entry: entry.name.slot):
        header = entry.header
        assert header is not None
        operands.append(
            Operand(
                f"{plan.key} of {dump.root}",
                header.element,
                header.shape,
                entry.nbytes,
                InFile(str(dump.root), entry.source, entry.offset),
                fortran_order=header.fortran_order,
            )
        )
    return operands


def in_store(dump: MadeDump, store: Path, *tensors: np.ndarray[Any, Any]) -> list[Operand]:
    """Write tensors into a dump, ingest it, and return them as operands in the store."""
    file_operands = in_files(dump, *tensors)
    ingest_directly(dump.root, store, SMALL_GRID)
    step = open_store(str(store)).step(0, 0)
    tables = step.tables
    slots = {slot: row for row, slot in enumerate(tables.number("slot").tolist())}
    operands = []
    for slot, operand in enumerate(file_operands):
        row = slots[slot]
        assert tables.label("kind")[row] == RowKind.TENSOR
        path = str(tables.label("array")[row])
        place = Stored(
            step.address,
            f"{step.commit.prefix}/{path}",
            step.packed_spec(path),
            int(tables.number("offset")[row]),
            int(tables.number("size")[row]),
        )
        operands.append(
            Operand(
                f"{StepKey(0, 0)} of {store}",
                operand.element,
                operand.shape,
                operand.nbytes,
                place,
                tables.digest[row].tobytes(),
                operand.fortran_order,
            )
        )
    return operands


VALUES = np.arange(1000, dtype="<f4")


@pytest.fixture(params=["together", "piece by piece"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small pairs are compared in memory together, large ones piece by piece."""
    if request.param == "piece by piece":
        monkeypatch.setattr(compare, "WHOLE_NBYTES", 0)
        monkeypatch.setattr(compare, "_PIECE", 64)
    return str(request.param)


def files(tmp_path: Path, name: str, *tensors: np.ndarray[Any, Any]) -> list[Operand]:
    return in_files(MadeDump(tmp_path / name), *tensors)


@pytest.mark.usefixtures("how")
def test_elements_are_compared_if_digests_differ(tmp_path: Path, made: MadeDump, store: Path) -> None:
    changed = VALUES.copy()
    changed[7] += 0.5
    (a,), (b,) = files(tmp_path, "a", changed), in_store(made, store, VALUES)
    (result,) = compare_pairs([Pair(a, b)])
    assert result.basis == "elements"
    assert result.metrics is not None
    assert (result.metrics.unequal, result.metrics.max_abs) == (1, 0.5)


@pytest.mark.usefixtures("how")
def test_orders_of_axes_and_types_do_not_matter(tmp_path: Path) -> None:
    matrix = np.arange(12).reshape(3, 4)
    (a,) = files(tmp_path, "a", np.asfortranarray(matrix.astype("<f8")))
    (b,) = files(tmp_path, "b", matrix.astype("<f4"))
    (result,) = compare_pairs([Pair(a, b)])
    assert result.metrics is not None
    assert result.metrics.unequal == 0


def test_tensors_too_large_to_be_reordered_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(compare, "MAX_REORDERED_NBYTES", 10)
    matrix = np.arange(12, dtype="<f4").reshape(3, 4)
    (a,) = files(tmp_path, "a", np.asfortranarray(matrix))
    (b,) = files(tmp_path, "b", matrix + 1)
    (result,) = compare_pairs([Pair(a, b)])
    assert result.metrics is None
    assert result.problem == "too large to be brought from one layout into the other"


@pytest.mark.usefixtures("how")
def test_damage_is_a_result_and_the_other_pairs_are_compared(
    tmp_path: Path, made: MadeDump, store: Path
) -> None:
    noise = [np.random.default_rng(seed).normal(size=200).astype("<f4") for seed in range(3)]
    stored = in_store(made, store, *noise)
    shards = sorted(store.glob("rank_0/step_0/*/tensors/float32/c/*"), key=lambda path: int(path.name))
    shards[0].write_bytes(b"damaged")
    reference = files(tmp_path, "b", *(values + 1 for values in noise))
    results = compare_pairs([Pair(a, b) for a, b in zip(stored, reference, strict=True)])
    assert [result.damaged for result in results][0::2] == [True, False]
    assert results[0].metrics is None
    assert results[2].metrics is not None


@pytest.mark.usefixtures("how")
def test_bytes_that_are_not_those_that_were_written_are_damage(
    tmp_path: Path, made: MadeDump, store: Path
) -> None:
    (stored,) = in_store(made, store, VALUES)
    (reference,) = files(tmp_path, "b", VALUES + 1)
    (result,) = compare_pairs([Pair(replace(stored, digest=b"0" * 16), reference)])
    assert result.damaged
    assert result.problem.endswith("the digest does not match")


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
    (answer,) = run_packed(pack(partial(each, search_placement), [question]))
    assert str(answer.search.ways[0].a) == "shard 1"
    pair = PlacedPair(a, b, answer.search.ways[0].a.assembly, answer.search.ways[0].b.assembly)
    outcome = compare_placed(pair)
    assert outcome.metrics is not None
    assert (outcome.metrics.bit_equal, outcome.metrics.count) == (True, WHOLE.size)
    assert pair.nbytes == question.nbytes == 2 * WHOLE.nbytes


def test_the_same_elements_are_equal_whether_they_are_read_whole_or_by_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operands, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(operands, "_WINDOW", 8)
    values = WHOLE.astype(">f8")
    a, b = (
        tuple(in_files(MadeDump(tmp_path / order), np.asarray(values, order=order))) for order in ("C", "F")
    )
    outcome = compare_placed(PlacedPair(a, b, Piece(0, WHOLE.shape), Piece(0, WHOLE.shape)))
    assert outcome.metrics is not None
    assert outcome.metrics.bit_equal
