"""Which elements of two tensors differ, and in which bits."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import DumpStore, open_store
from ingest.reader.anatomy import bit_difference, compare_bits
from ingest.reader.tensor import Tensor
from tests.made_runs import Values
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly

VALUES = np.arange(12, dtype="<f4").reshape(3, 4)


def ingested(made: MadeDump, store: Path, other: Values) -> tuple[Tensor, Tensor]:
    made.add(VALUES, tensor_name("Mul.m", time=1), rank=0)
    made.add(other, tensor_name("Mul.m", time=1), rank=1)
    ingest_directly(made.root, store)
    return pair(open_store(store))


def pair(opened: DumpStore) -> tuple[Tensor, Tensor]:
    first, second = opened.tensors()
    return first, second


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_flipped_bit_has_its_index_in_the_order_of_the_axes(
    made: MadeDump, store: Path, order: str
) -> None:
    changed = VALUES.copy()
    changed[2, 1] = -changed[2, 1]
    first, second = ingested(made, store, changed)
    if order == "F":  # the same elements, from files that numpy wrote column by column
        for rank in range(2):
            for path in made.root.glob(f"rank_{rank}/**/*.npy"):
                path.unlink()
        made.add(np.asfortranarray(VALUES), tensor_name("Mul.m", time=1), rank=0)
        made.add(np.asfortranarray(changed), tensor_name("Mul.m", time=1), rank=1)
        ingest_directly(made.root, store.with_name("fortran.zarr"))
        first, second = pair(open_store(store.with_name("fortran.zarr")))
    answer = compare_bits(first, second)
    assert answer is not None
    assert [(element.index, element.bits) for element in answer.first] == [((2, 1), (31,))]


@pytest.mark.parametrize(
    "other",
    [VALUES.astype("<f8"), VALUES.reshape(4, 3), np.asfortranarray(VALUES)],
    ids=["type", "shape", "order"],
)
def test_what_lies_differently_has_no_bits_in_common(
    made: MadeDump,
    store: Path,
    other: Values,
) -> None:
    assert compare_bits(*ingested(made, store, other)) is None


def test_zeros_of_both_signs_differ_and_equal_nan_do_not() -> None:
    first, second = np.array([0.0, np.nan]), np.array([-0.0, np.nan])
    answer = bit_difference([first], [second], (2,))
    assert [(element.index, element.bits) for element in answer.first] == [((0,), (63,))]


@pytest.mark.parametrize("orders", ["<>", "><", ">>"])
def test_bits_are_those_of_the_number_whatever_the_order_of_its_bytes(orders: str) -> None:
    first = np.array([1, 2], f"{orders[0]}i4")
    second = np.array([1, 2 + (1 << 20)], f"{orders[1]}i4")
    answer = bit_difference([first], [second], (2,))
    assert [(element.index, element.bits) for element in answer.first] == [((1,), (20,))]
