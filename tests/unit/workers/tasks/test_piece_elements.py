"""Elements of operands by range."""

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.in_memory import InMemory
from tests.npy_files import MadeDump
from tests.operands import in_files, in_store
from workers.arrays.sharded.placement_search import Pieces
from workers.errors import DamagedStore
from workers.tasks import operands
from workers.tasks.operands import Operand, RangedElements, Stored, elements_of, with_twins

VALUES = np.arange(1000, dtype="<f4").reshape(10, 100)


@pytest.fixture(params=["together", "by range"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by range":
        monkeypatch.setattr(operands, "WHOLE_NBYTES", 0)
        monkeypatch.setattr(operands, "_WINDOW", 64)
    return str(request.param)


@pytest.mark.parametrize("values", [VALUES, VALUES.astype(ml_dtypes.bfloat16), VALUES.astype(np.int8)])
def test_ranges_of_files_and_of_stores(tmp_path: Path, how: str, values: np.ndarray) -> None:
    operands = [
        *in_files(MadeDump(tmp_path / "dump"), values),
        *in_store(MadeDump(tmp_path / "other"), tmp_path / "store", values),
    ]
    for read in elements_of(operands):
        for start, stop in ((0, 0), (0, 1000), (63, 65), (130, 700), (999, 1000)):
            assert read.read(start, stop).tolist() == values.reshape(-1)[start:stop].tolist()
        assert isinstance(read, RangedElements) == (how == "by range")


def test_fortran_order_is_read_as_a_whole(tmp_path: Path, how: str) -> None:
    operands = in_files(MadeDump(tmp_path / how), np.asfortranarray(VALUES))
    (read,) = elements_of(operands)
    assert read.read(95, 105).tolist() == VALUES.reshape(-1)[95:105].tolist()


def test_a_digest_that_differs_is_damage(tmp_path: Path) -> None:
    (operand,) = in_store(MadeDump(tmp_path / "dump"), tmp_path / "store", VALUES)
    with pytest.raises(DamagedStore, match="digest does not match"):
        elements_of([replace(operand, digest=b"x" * 16)])


def test_equal_pieces_of_a_dump_are_known_once_they_are_read(tmp_path: Path) -> None:
    read = elements_of(in_files(MadeDump(tmp_path / "dump"), VALUES, VALUES + 1, VALUES))
    assert with_twins(Pieces((VALUES.shape,) * 3, (0, 1, 2)), read).twins == (0, 1, 0)
    assert with_twins(Pieces((VALUES.shape,) * 2, (0, 1)), [InMemory(VALUES)] * 2).twins == (0, 1)


def test_what_is_read_in_order_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (operand,) = in_files(MadeDump(tmp_path / "dump"), VALUES)
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
    assert values.tolist() == VALUES.reshape(-1).tolist()
    assert requested == [(0, 50), (50, 1000)]
    requested.clear()
    (elements,) = elements_of([operand])
    assert elements.read(520, 530).tolist() == list(range(520, 530))  # elsewhere, only what is asked for
    assert requested == [(500, 550)]
    requested.clear()
    (elements,) = elements_of([operand], in_order=True)
    assert elements.read(0, 1000).tolist() == values.tolist()
    assert requested == [(0, 1000)]


def test_reads_ahead_begin_as_chunks_do_and_end_with_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operand = in_store(MadeDump(tmp_path / "dump"), tmp_path / "store", VALUES)[0]
    assert isinstance(operand.place, Stored)
    array = replace(operand.place.array, chunk=50, chunks_per_shard=4)
    shifted = replace(operand, place=replace(operand.place, first=120, array=array))
    monkeypatch.setattr(operands, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(operands, "_WINDOW", 50)
    requested = []

    def given(_: Operand, start: int, stop: int) -> np.ndarray:
        requested.append((start, stop))
        return VALUES.reshape(-1)[start:stop]

    monkeypatch.setattr(operands, "_read_range", given)
    (elements,) = elements_of([shifted], in_order=True)
    assert elements.read(0, 1000).tolist() == VALUES.reshape(-1).tolist()
    assert requested[:3] == [(0, 80), (80, 280), (280, 480)]
    assert requested[-1][1] == 1000
