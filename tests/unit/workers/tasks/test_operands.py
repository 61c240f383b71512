"""Tensors to compare: read whole or in pieces, from a store or from files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.npy_files import MadeDump
from tests.operands import in_files, in_store
from workers.arrays.dtypes import from_name
from workers.errors import DamagedStore, SourceChanged
from workers.tasks.operands import InFile, Operand, read_pieces, read_whole

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


def test_elements_come_in_the_order_of_the_axes(made: MadeDump) -> None:
    plain, fortran = in_files(made, VALUES, MATRIX)
    assert (plain.is_in_order, fortran.is_in_order) == (True, False)
    payload = read_whole([fortran])[0]
    assert not isinstance(payload, DamagedStore)
    assert fortran.values(payload).tolist() == MATRIX.reshape(-1).tolist()


def test_too_few_bytes_are_refused() -> None:
    operand = Operand("rank 0 step 0", from_name("float32"), (4,), 16, None)
    with pytest.raises(ValueError, match="2 elements instead of 4"):
        operand.values(bytes(8))


def test_what_makes_a_tensor_besides_its_bytes() -> None:
    operand = Operand("rank 0 step 0", from_name("float32"), (2, 2), 16, None)
    assert operand.meaning == replace(operand, where="elsewhere", digest=b"x").meaning
    assert operand.meaning != replace(operand, fortran_order=True).meaning
    assert operand.meaning != replace(operand, shape=(4,)).meaning
    flat = replace(operand, shape=(4,))
    assert flat.meaning == replace(flat, fortran_order=True).meaning  # a single axis has one order


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
