"""Which tensors would lose what: the same before and after the tensors are gone, the worst first."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.precision import precision
from ingest.store_gc.plan import GcPolicy
from tests.gc_stores import age
from tests.stores import MadeDump, ingest_and_open, plan_all, run, tensor_name
from tests.unit.workers.arrays.sketches.test_sketches import cast_losses
from workers.arrays.dtypes import NAMED
from workers.errors import UsageError
from workers.store import strict_json

FORMATS = ("float16", "float8_e4m3fn", "float8_e5m2")


@pytest.fixture
def growing(made: MadeDump, store: Path) -> ingest.DumpStore:
    """A tensor that doubles in each of four steps, on rank 1 of two; and one that does not."""
    for rank in range(2):
        for step in range(4):
            values = np.array([1, -2, 0.001, 0], "<f4")
            made.add(values * 2**step * (16 if rank else 1), tensor_name(time=1), step=step, rank=rank)
            made.add(values, tensor_name(slot=1, time=2), step=step, rank=rank)
    return ingest_and_open(made.root, store, sketches=True)


def test_every_tensor_is_answered_as_its_cast_is(sketched_store: Path) -> None:
    store = ingest.open_store(sketched_store)
    answer = precision(store, formats=FORMATS, powers_of_two=True, rank=1, step=2)
    tensors = {tensor.name: tensor for tensor in store.tensors(rank=1, step=2)}
    assert len(answer.rows) == len(FORMATS) * len(tensors)
    compared = 0
    for row in answer.rows:
        values = tensors[row.name].read().reshape(-1)
        if values.dtype != np.float32:
            continue
        overflow, underflow = cast_losses(values, NAMED[row.format], row.scale)
        assert (row.overflow.low, row.underflow.low, row.exactness) == (overflow, underflow, "exact")
        compared += 1
    assert compared > 400


@pytest.mark.parametrize("scaling", ["none", "current", "delayed"])
def test_the_answer_is_the_same_when_gc_has_removed_the_tensors(
    sketched_store: Path, tmp_path: Path, scaling: str
) -> None:
    path = tmp_path / "run.zarr"
    shutil.copytree(sketched_store, path)
    age(path)
    before = precision(ingest.open_store(path), scaling=scaling)
    plan = ingest.plan_gc(path, GcPolicy(tensors_around_anomalies=0))
    assert ingest.apply_gc(path, plan).objects
    assert not ingest.open_store(path).step(1, 1).has_tensors
    after = precision(ingest.open_store(path), scaling=scaling)
    assert strict_json.dumps(after.to_dict()) == strict_json.dumps(before.to_dict())
    assert list(ingest.open_store(path).verify()) == []


def test_the_worst_comes_first_with_its_place(growing: ingest.DumpStore) -> None:
    answer = precision(growing, "*output.0", ["e3m4"], rank=1)
    (tensor,) = answer.tensors
    assert (tensor.worst.rank, tensor.worst.step, tensor.first_step, tensor.ranks) == (1, 0, 0, (1,))
    assert tensor.worst.overflow.high == 2
    grows = precision(growing, formats=["float16"]).tensors
    by_name = {tensor.worst.name[-8:]: tensor for tensor in grows}
    one = by_name["output.0"]
    assert one.first_step is None
    assert one.headroom_bits == pytest.approx(math.log2(65504 / 256))


def test_delayed_scaling_uses_what_was_before(
    growing: ingest.DumpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = precision(growing, "*output.0", ["e4m3"], scaling="delayed", powers_of_two=True, rank=0).rows
    assert [row.scale for row in rows] == [1, 128, 64, 32]
    assert [row.overflow.low for row in rows] == [0, 1, 1, 1]
    monkeypatch.setattr("ingest.questions.precision.HISTORY", 2)
    forgetful = precision(growing, "*output.1", ["e4m3"], scaling=" Delayed ", rank=0).rows
    assert [row.scale for row in forgetful] == [1, 224, 224, 224]
    current = precision(growing, "*output.0", ["e4m3"], scaling="current", rank=0).rows
    assert [row.largest * row.scale for row in current] == [448] * 4
    assert not any(row.overflow.high for row in current)


def test_tensors_without_histograms_are_counted(growing: ingest.DumpStore, made: MadeDump) -> None:
    made.add(np.ones(3, "<f4"), tensor_name(time=1), step=9)
    run(next(plan for plan in plan_all(made.root, growing.url) if plan.key.step == 9))
    answer = precision(growing)
    assert answer.without == 1
    with pytest.raises(UsageError, match="none of the chosen tensors has a histogram") as raised:
        precision(growing, step=9)
    assert "dump-ingest sketch" in (raised.value.hint or "")
    assert "if their elements were dumped" in (raised.value.hint or "")


def test_mistakes_are_explained(growing: ingest.DumpStore) -> None:
    for arguments in ({"formats": ["float9"]}, {"scaling": "often"}, {"pattern": "Nothing*"}):
        with pytest.raises(UsageError):
            precision(growing, **arguments)
