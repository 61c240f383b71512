"""The index of a step is searched by columns, and sent to other processes."""

import pickle
from pathlib import Path

import numpy as np

from ingest.api import DumpStore, open_store
from ingest.reader.indexed_step import COLUMNS
from ingest.reader.tensor_filter import TensorFilter
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.arrays.filter import Filter


def test_a_step_travels(many: Path) -> None:
    step = open_store(many).step(1, 2)
    there = pickle.loads(pickle.dumps(step))  # noqa: S301
    assert there.key == step.key
    np.testing.assert_array_equal(there.tensors()[0].read(), step.tensors()[0].read())


def test_rows_fulfil_conditions_on_every_kind_of_column(filled: DumpStore) -> None:
    step = filled.step(1, 9)
    for text, count in (
        ("op_type == 'Log'", 5),
        ("slot >= 8", 2),
        ("nan_count > 0", 1),
        ("rank == 1 and step == 9", 10),
        ("rank == 0", 0),
        ("name in ['Log.b.output.4', 'MatMul.a.output.1', 'MatMul.a.output.2']", 2),
    ):
        assert len(step.rows(Filter(text, COLUMNS))) == count
    assert len(step.rows(TensorFilter({"op_type": "Log", "io": "output"}, COLUMNS))) == 5
    assert step.rows(TensorFilter({"op_type": "Log", "io": "input"}, COLUMNS)) == []


def test_run_files_have_step_minus_one_in_conditions(dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps["mindspore-2.0.0-cpu-sync"] / "lenet", store)
    run_files = open_store(store).step(0, None)
    assert run_files.rows(Filter("step == -1", COLUMNS)) == run_files.rows()


def test_single_row_has_the_elements_of_that_row(filled: DumpStore) -> None:
    step = filled.step(1, 9)
    row = step.rows()[7]
    alone = pickle.loads(pickle.dumps(step.only(row)))  # noqa: S301
    assert len(alone.tables.labels) == 1
    assert alone.read(0) == step.read(row)
    assert alone.fingerprint == step.fingerprint
    assert alone.address == step.address


def test_step_is_shown_by_rank_step_and_status(filled: DumpStore) -> None:
    assert repr(filled.step(1, 9)) == "<Step rank 1 step 9 complete>"
