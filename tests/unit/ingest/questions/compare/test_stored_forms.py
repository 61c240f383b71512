"""Types, shapes and layouts of the tensors of an index, made for those that are asked for."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.questions.compare.stored_forms import ListOnDemand, StoredForms
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.store.consolidated.blocks import tensors_of


def test_a_list_is_made_once_and_on_demand() -> None:
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return [0, 10, 20]

    items = ListOnDemand(3, make)
    assert (len(items), made) == (3, [])
    assert (len(items), items[1], items[-1], items[1:], list(items)) == (3, 10, 20, [10, 20], [0, 10, 20])
    with pytest.raises(IndexError):
        items[3]
    assert made == [1]


def test_fields_that_are_equal_have_equal_meanings(dumps: DumpLibrary, tmp_path: Path) -> None:
    ingest_directly(dumps["cann-bin-synthetic"] / "torchair", tmp_path / "run.zarr")
    store = open_store(tmp_path / "run.zarr")
    step = store.step(store.ranks[0], store.steps[0])
    tables = step.tables
    rows, _ = tensors_of(tables)
    forms = StoredForms(tables, rows)
    assert [tuple(shape) for shape in forms.shapes] == [tensor.shape for tensor in step.tensors()]
    assert len({meaning[0] for meaning in forms.meanings}) > 1
    for row in range(len(rows)):
        for other in range(len(rows)):
            if np.all(forms.fields[row] == forms.fields[other]):
                assert forms.meanings[row] == forms.meanings[other]
                assert forms.shapes[row] == forms.shapes[other]
