"""Odd channels over steps and ranks, against numpy, and the same before and after the tensors are gone."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.outliers import outliers
from ingest.store_gc.plan import GcPolicy
from tests.gc_stores import age
from tests.stores import MadeDump, ingest_directly, plan_all, run, tensor_name
from workers.arrays.marginals import MarginalScope
from workers.errors import UsageError
from workers.store import strict_json


@pytest.fixture
def odd(made: MadeDump, store: Path) -> Path:
    """Two ranks: a column stands out on rank 1 from step 1 of 3 on, others are dead or saturated."""
    rng = np.random.default_rng(2)
    for rank in range(2):
        for step in range(3):
            values = rng.standard_normal((300, 260)).astype("<f4")
            if rank == 1 and step >= 1:
                values[:, 100] *= 50 * step
            values[:, 200:205] = 0
            values[:, 250] = np.sign(values[:, 250])
            made.add(values, tensor_name(time=1), step=step, rank=rank)
            made.add(values[:5].copy(), tensor_name(slot=1, time=2), step=step, rank=rank)
    ingest_directly(made.root, store, sketches=True)
    age(store)
    return store


def test_the_worst_comes_first_with_its_time_and_ranks(odd: Path) -> None:
    store = ingest.open_store(odd)
    answer = outliers(store)
    outlier, dead, saturated = answer.positions
    values = np.abs(store.tensors("*output.0", rank=1, step=2)[0].read()).max(axis=0)
    assert (outlier.kind, outlier.axis, outlier.positions) == ("outlier", 1, (100,))
    assert (outlier.first_step, outlier.last_step, outlier.steps, outlier.of_steps) == (1, 2, 2, 3)
    assert (outlier.rank, outlier.step, outlier.ranks) == (1, 2, (1,))
    assert outlier.value == values.max()
    assert outlier.median == np.median(values[values > 0])
    assert (dead.kind, dead.positions, dead.ranks, dead.steps) == ("dead", tuple(range(200, 205)), (0, 1), 3)
    assert (saturated.kind, saturated.positions) == ("saturated", (250,))
    assert [position.exactness for position in answer.positions] == ["exact", "exact", "bounded"]
    assert [position.error for position in answer.positions] == [0, 0, pytest.approx(2**-24, rel=1e-5)]
    assert (answer.looked_at, answer.too_small, answer.without) == (6, 6, 0)


def test_damaged_marginals_are_left_out_and_named(odd: Path) -> None:
    (path,) = (odd / "rank_1/step_2").glob("*/marginals/c/0/0")
    path.write_bytes(b"damaged")
    answer = outliers(ingest.open_store(odd))
    assert (answer.positions[0].step, answer.looked_at) == (1, 5)
    (left_out,) = answer.left_out
    assert left_out.is_damaged
    assert str(left_out).startswith("rank 1 step 2: damaged: ")


@pytest.mark.parametrize("by", ["abs_max", "l2_norm"])
def test_the_answer_is_the_same_when_gc_has_removed_the_tensors(odd: Path, by: str) -> None:
    before = outliers(ingest.open_store(odd), by=by)
    plan = ingest.plan_gc(odd, GcPolicy(tensors_around_anomalies=0))
    assert ingest.apply_gc(odd, plan).objects
    assert not ingest.open_store(odd).step(1, 1).has_tensors
    after = outliers(ingest.open_store(odd), by=by)
    assert strict_json.dumps(after.to_dict()) == strict_json.dumps(before.to_dict())
    assert list(ingest.open_store(odd).verify()) == []


def test_what_is_asked_for_decides(odd: Path) -> None:
    store = ingest.open_store(odd)
    assert not outliers(store, factor=500, kinds=["outlier"]).positions
    assert [odd.kind for odd in outliers(store, rank=0).positions] == ["dead", "saturated"]
    assert outliers(store, kinds=["dead"], step=0).positions[0].of_steps == 1


def test_steps_without_marginals_are_counted(odd: Path, made: MadeDump) -> None:
    made.add(np.ones(3, "<f4"), tensor_name(time=1), step=9)
    run(next(plan for plan in plan_all(made.root, str(odd)) if plan.key.step == 9))
    assert outliers(ingest.open_store(odd)).without == 1
    with pytest.raises(UsageError, match="none of the chosen tensors has marginals") as raised:
        outliers(ingest.open_store(odd), step=9)
    assert "dump-ingest sketch" in (raised.value.hint or "")


def test_mistakes_are_explained(odd: Path) -> None:
    store = ingest.open_store(odd)
    for arguments in ({"by": "mean"}, {"factor": 1.0}, {"kinds": ["odd"]}, {"pattern": "Nothing*"}):
        with pytest.raises(UsageError):
            outliers(store, **arguments)


def test_tensors_that_lack_marginals_by_their_size_are_counted(made: MadeDump, store: Path) -> None:
    rng = np.random.default_rng(2)
    shapes = {"looked at": (600, 500), "without": (300, 260), "too small": (5, 260)}
    for slot, shape in enumerate(shapes.values()):
        made.add(rng.standard_normal(shape).astype("<f4"), tensor_name(slot=slot, time=slot), step=0)
    made.add(np.zeros((300, 260), "<f4"), tensor_name(slot=3, time=3), step=0)
    ingest_directly(made.root, store, sketches=True, marginals=MarginalScope.LARGE)
    answer = outliers(ingest.open_store(store))
    assert (answer.looked_at, answer.too_small, answer.without) == (1, 2, 1)
    with pytest.raises(UsageError, match="none of the chosen tensors has marginals"):
        outliers(ingest.open_store(store), "*output.1")
