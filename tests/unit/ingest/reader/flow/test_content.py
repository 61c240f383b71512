"""Which tensors have the same content."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.reader.flow.content import CallKey, content_of, is_in_order, key_of, tensor_rows, told_hash
from ingest.reader.step import Step
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly


@pytest.fixture
def step(made: MadeDump, store: Path) -> Step:
    run = MadeRun(made)
    run.op("Mul.m", [numbers(1, 2)], [numbers(1, 2).view(np.int32), numbers(3, np.nan)])
    run.op("Add.a", [numbers(3, np.nan)], [numbers(1, 2)])
    made.add(b"notes", "notes.txt")
    ingest_directly(made.root, store)
    return open_store(store).step(0, 0)


def test_equal_bytes_of_one_type_are_one_content(step: Step) -> None:
    contents = [content_of(step, row) for row in tensor_rows(step.tables)]
    # Mul reads a, writes its bytes as integers and b; Add reads b and writes a.
    assert [contents.index(content) for content in contents] == [0, 1, 2, 2, 0]


def test_rows_of_tensors_are_told_from_files_and_have_their_call(step: Step) -> None:
    tables = step.tables
    rows = tensor_rows(tables)
    assert len(rows) == len(tables.label("kind")) - 1
    assert is_in_order(tables, rows)
    assert not is_in_order(tables, rows[:0])
    assert key_of(tables, int(rows[-1])) == CallKey("Net", "0", "Add", "a", 0)
    assert {told_hash(tables, int(row)) for row in rows} == {""}
