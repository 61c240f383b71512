"""Statistics and histogram from the stored payload are those of the conversion."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly, plan_all
from tests.pipeline import run as run_plan
from workers.store.model import Grid
from workers.store.step import RecomputedStatistics, StoredStep

PIECE = 64


def recomputed(step: StoredStep, row: int, *, with_histogram: bool = False) -> RecomputedStatistics:
    answer = RecomputedStatistics(step, row, with_histogram=with_histogram)
    for _, pieces in step.payloads([row], PIECE):
        for piece in pieces:
            answer.update(piece)
    return answer


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i2", "|u1", "|b1", "<c8"])
def test_what_is_computed_again_in_pieces_is_what_is_stored(made: MadeDump, store: Path, dtype: str) -> None:
    values = np.arange(-50, 51).astype(dtype)
    if values.dtype.kind == "f":
        values[[3, 99]] = np.nan, -np.inf
    made.add(values)
    ingest_directly(made.root, store)
    step = open_store(store).step(0, 0)
    (tensor,) = step.tensors()
    result = recomputed(step, tensor.row).result()
    assert result is not None
    assert np.array_equal(result, step.tables.statistics[tensor.row], equal_nan=True)


def test_a_tensor_in_device_layout_is_taken_in_the_order_of_its_axes(dumps: DumpLibrary, store: Path) -> None:
    for plan in plan_all(dumps["cann-bin-synthetic"] / "torchair", store, Grid(keep_device_layout=True)):
        run_plan(plan)
    steps = open_store(store).select()
    rows = [(step, tensor.row) for step in steps for tensor in step.tensors() if tensor.device_shape]
    kept = [(step, row) for step, row in rows if step.is_in_device_layout(row)]
    assert kept
    for step, row in kept[:5]:
        result = recomputed(step, row).result()
        if result is not None:
            assert np.array_equal(result, step.tables.statistics[row], equal_nan=True)


def test_a_histogram_is_computed_if_it_is_asked_for(made: MadeDump, store: Path) -> None:
    made.add(np.array([0.75, 0.75, -3, 0, np.nan], "<f4"))
    ingest_directly(made.root, store)
    step = open_store(store).step(0, 0)
    (tensor,) = step.tensors()
    rows = recomputed(step, tensor.row, with_histogram=True).histogram_rows()
    assert rows[:, 1:].sum(axis=0).tolist() == [2, 1]  # positive and negative ones; zero and NaN have no bin


def test_statistics_of_the_dump_are_not_computed(dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps["cann-bin-synthetic"] / "stats", store)
    step = next(step for step in open_store(store).select() if step.tensors())
    row = next(tensor.row for tensor in step.tensors() if tensor.statistics_from != "computed")
    answer = RecomputedStatistics(step, row, with_histogram=True)
    answer.update(bytes(8))
    assert answer.result() is None
    assert len(answer.histogram_rows()) == 0
