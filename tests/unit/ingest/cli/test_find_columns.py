"""The columns of `find`."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.cli.find_columns import (
    TENSOR_COLUMNS,
    SortColumn,
    in_order,
    parse_columns,
    parse_order,
    value_of,
)
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import UsageError


@pytest.fixture
def tensors(made: MadeDump, store: Path) -> list[ingest.Tensor]:
    """Five tensors of one element each; that of the second is NaN."""
    for number, value in enumerate((2.0, np.nan, 3.0, 1.0, 2.0)):
        made.add(np.array([value]), tensor_name(f"Add.net_Add-op{number}"))
    ingest_directly(made.root, store)
    return ingest.open_store(store).tensors()


def test_columns_are_the_keys_of_json(tensors: list[ingest.Tensor]) -> None:
    row = tensors[0].to_dict()
    assert set(TENSOR_COLUMNS) == row.keys()
    values = {name: value_of(tensors[0], name) for name in TENSOR_COLUMNS}
    assert {**values, "shape": list(values["shape"])} == row


def test_unknown_values_come_last_either_way_and_equal_ones_stay(tensors: list[ingest.Tensor]) -> None:
    def order(text: str) -> list[int]:
        return [int(tensor.op_name[-1]) for tensor in in_order(tensors, parse_order(text, TENSOR_COLUMNS))]

    assert order("max") == [3, 0, 4, 2, 1]
    assert order("-max") == [2, 0, 4, 3, 1]
    assert order("-max,-name") == [2, 4, 0, 3, 1]
    assert in_order(tensors, []) == tensors


def test_lists_of_columns_are_read_and_mistakes_named() -> None:
    assert parse_columns(" name, max,", TENSOR_COLUMNS) == ["name", "max"]
    assert parse_order("-max,name", TENSOR_COLUMNS) == [
        SortColumn("max", is_descending=True),
        SortColumn("name", is_descending=False),
    ]
    with pytest.raises(UsageError) as error:
        parse_columns("l2norm", TENSOR_COLUMNS)
    assert error.value.hint == "Did you mean l2_norm?"
