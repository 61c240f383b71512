"""Values next to tensors, as the index keeps them."""

import json
from typing import Any

import pytest

from bench.steps import make_tables
from workers.model import StepKey
from workers.store.tables import LABELS, Tables, attributes_of, record_of


def tables(*rows: tuple[str, Any]) -> Tables:
    """Return an index of rows with these sources and records."""
    made = make_tables(StepKey(0, 0), [f"Type.name{row}.output.0" for row in range(len(rows))])
    for row, (source, record) in enumerate(rows):
        made.labels[row, LABELS.index("source")] = source
        text = record if isinstance(record, str) else json.dumps(record)
        made.labels[row, LABELS.index("record")] = text
    return made


def test_values_of_the_file_belong_to_each_of_its_tensors() -> None:
    made = tables(("a.pt", {"file": {"lr": 0.1}}), ("a.pt", ""), ("b.pt", {"file": {"lr": 0.2}}))
    assert [attributes_of(made, row) for row in range(3)] == [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]


def test_what_is_known_of_a_tensor_alone_is_its_own() -> None:
    made = tables(("a.pt", {"file": {"lr": 0.1}, "tensor": {"kind": "DTensor"}}), ("a.pt", {"path": ["x.y"]}))
    assert attributes_of(made, 0) == {"lr": 0.1, "tensor": {"kind": "DTensor"}}
    assert attributes_of(made, 1) == {"lr": 0.1}
    assert record_of(made, 1) == {"path": ["x.y"]}


@pytest.mark.parametrize("record", ["", "{", "[1]", "7", "[" * 100_000, {"file": [1]}])
def test_record_that_is_damaged_has_no_values(record: Any) -> None:
    assert attributes_of(tables(("a.pt", record)), 0) == {}
