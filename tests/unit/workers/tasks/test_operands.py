"""Tensors to compare: read whole or in pieces, from a store or from files."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.npy_files import MadeDump
from tests.operands import in_files, in_store
from workers.errors import DamagedStore, SourceChanged
from workers.tasks import operands
from workers.tasks.operands import (
    InFile,
    Operand,
    RangedElements,
    elements_of,
    read_pieces,
    read_whole,
)

VALUES = np.arange(1000, dtype="<f4")
MATRIX = np.asfortranarray(np.arange(12, dtype="<f8").reshape(3, 4))


def test_payloads_are_read_from_files_and_from_a_store(made: MadeDump, store: Path) -> None:
    stored = in_store(made, store, VALUES, MATRIX, VALUES[:0])
    files = in_files(made)
    payloads = [VALUES.tobytes(), MATRIX.tobytes("F"), b""]
    assert read_whole(stored) == payloads
    assert read_whole([*files[::-1], *stored]) == payloads[::-1] + payloads


@pytest.mark.parametrize("elements", [8, 64, 1000, 4096])
def test_pieces_make_up_the_payload(elements: int, made: MadeDump, store: Path) -> None:
    for operand in (*in_store(made, store, VALUES), *in_files(made)):
        pieces = [bytes(piece) for piece in read_pieces(operand, elements)]
        assert b"".join(pieces) == VALUES.tobytes()
        assert {len(piece) for piece in pieces[:-1]} <= {4 * elements}


def test_a_damaged_chunk_costs_the_tensors_that_are_in_it(made: MadeDump, store: Path) -> None:
    """Others of the same array are still read."""
    noise = [np.random.default_rng(seed).normal(size=200).astype("<f4") for seed in range(3)]
    operands = in_store(made, store, *noise)
    shards = sorted(store.glob("rank_0/step_0/*/tensors/float32/c/*"), key=lambda path: int(path.name))
    shards[0].write_bytes(b"damaged")
    payloads = read_whole(operands)
    assert isinstance(payloads[0], DamagedStore)
    assert payloads[2] == noise[2].tobytes()
    with pytest.raises(DamagedStore):
        list(read_pieces(operands[0], 64))


def test_a_file_that_changed_is_not_read(made: MadeDump) -> None:
    (operand,) = in_files(made, VALUES)
    assert isinstance(operand.place, InFile)
    (made.root / operand.place.source.path).write_bytes(b"other")
    with pytest.raises(SourceChanged):
        read_whole([operand])


RANGED_VALUES = np.arange(1000, dtype="<f4").reshape(10, 100)


@pytest.fixture(params=["together", "by range"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by range":
        monkeypatch.setattr(operands, "WHOLE_NBYTES", 0)
        monkeypatch.setattr(operands, "_WINDOW", 64)
    return str(request.param)


@pytest.mark.parametrize(
    "values",
    [
        RANGED_VALUES,
        RANGED_VALUES.astype(ml_dtypes.bfloat16),
        RANGED_VALUES.astype(np.int8),
    ],
)
def test_ranges_of_files_and_of_stores(tmp_path: Path, how: str, values: np.ndarray) -> None:
    operands = [
        *in_files(MadeDump(tmp_path / "dump"), values),
        *in_store(MadeDump(tmp_path / "other"), tmp_path / "store", values),
    ]
    for read in elements_of(operands):
        for start, stop in ((0, 0), (0, 1000), (63, 65), (130, 700), (999, 1000)):
            assert read.read(start, stop).tolist() == values.reshape(-1)[start:stop].tolist()
        assert isinstance(read, RangedElements) == (how == "by range")


def test_what_is_read_in_order_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (operand,) = in_files(MadeDump(tmp_path / "dump"), RANGED_VALUES)
    monkeypatch.setattr(operands, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(operands, "_WINDOW", 50)
    requested = []
    read_range = operands._read_range

    def counted(operand: Operand, start: int, stop: int) -> np.ndarray:
        requested.append((start, stop))
        return read_range(operand, start, stop)

    monkeypatch.setattr(operands, "_read_range", counted)
    (elements,) = elements_of([operand])
    values = np.concatenate([elements.read(start, start + 100) for start in range(0, 1000, 100)])
    assert values.tolist() == RANGED_VALUES.reshape(-1).tolist()
    assert requested == [(0, 50), (50, 1000)]
    requested.clear()
    (elements,) = elements_of([operand])
    assert elements.read(520, 530).tolist() == list(range(520, 530))  # elsewhere, only what is asked for
    assert requested == [(500, 550)]
    requested.clear()
    (elements,) = elements_of([operand], in_order=True)
    assert elements.read(0, 1000).tolist() == values.tolist()
    assert requested == [(0, 1000)]
