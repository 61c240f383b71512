"""How ranks hold the tensors of a reference is told from marginals alone, before and after gc."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.placement.by_marginals import layout_by_marginals
from ingest.store_gc.plan import GcPolicy
from tests.gc_stores import age
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.statistics_runs import ingest_statistics
from workers.errors import UsageError

RNG = np.random.default_rng(8)
WHOLE = RNG.standard_normal((320, 400)).astype(np.float32)
PART = RNG.standard_normal(WHOLE.shape).astype(np.float32)
#: By slot: what each of four ranks has; ranks 2 and 3 are replicas of 0 and 1.
PIECES = (
    (WHOLE, WHOLE),
    (WHOLE[:160], WHOLE[160:]),
    (np.ascontiguousarray(WHOLE[:, :100]), np.ascontiguousarray(WHOLE[:, 100:])),
    (PART, WHOLE - PART),
    (PART[:160], PART[160:]),
    (WHOLE[:3], WHOLE[3:6]),
)
EXPECTED = ["replicated", "shard 0", "shard 1", "partial sum", "", ""]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run` over four ranks, two steps; `one`, with the whole tensors."""
    root = tmp_path_factory.mktemp("held")
    for name, ranks in (("run", 4), ("one", 1)):
        dump = MadeDump(root / f"{name}-dump")
        for step in range(2):
            for rank in range(ranks):
                for slot, pieces in enumerate(PIECES):
                    whole = WHOLE if slot < 5 else WHOLE[:6]
                    held = pieces[rank % 2] if name == "run" else whole
                    dump.add(held, tensor_name(slot=slot, time=slot + 1), step=step, rank=rank)
        ingest_directly(dump.root, root / name, sketches=True)
    return root


def test_each_way_is_told_and_the_same_after_gc(stores: Path) -> None:
    run, reference = stores / "run", f"{stores / 'one'}@0,0"
    told = layout_by_marginals(ingest.open_store(run), reference)
    assert [held.placement for held in told.tensors] == EXPECTED
    assert [held.exactness for held in told.tensors[:4]] == ["exact", *["estimated"] * 3]
    assert told.tensors[1].groups == ((0, 2), (1, 3))
    assert max(held.error for held in told.tensors[:4]) < 1e-5
    assert "no marginals" in told.tensors[5].why
    assert "not those of pieces" in told.tensors[4].why
    for store in (run, stores / "one"):
        age(store)
        plan = ingest.plan_gc(str(store), GcPolicy(tensors_around_anomalies=0))
        assert ingest.apply_gc(str(store), plan).objects
    assert not ingest.open_store(run).step(0, 0).has_tensors
    assert layout_by_marginals(ingest.open_store(run), reference) == told


def test_pieces_of_another_name(stores: Path) -> None:
    run, reference = ingest.open_store(stores / "run"), f"{stores / 'one'}@0,1"
    (whole,) = (held.name for held in layout_by_marginals(run, reference).tensors[:1])
    (pieces,) = (held.name for held in layout_by_marginals(run, reference).tensors[3:4])
    (held,) = layout_by_marginals(run, reference, pieces, of=whole, step=0).tensors
    assert (held.name, held.pieces, held.placement) == (whole, pieces, "partial sum")
    mistakes: list[Callable[[], object]] = [
        lambda: layout_by_marginals(run, reference, of="None"),
        lambda: layout_by_marginals(run, reference, "None*"),
        lambda: layout_by_marginals(run, reference, step=7),
        lambda: layout_by_marginals(run, str(stores / "one")),
    ]
    for mistake in mistakes:
        with pytest.raises(UsageError):
            mistake()


def test_pieces_without_digests_are_not_taken_for_equal(tmp_path: Path) -> None:
    store = ingest_statistics(tmp_path, [{"Parameter.weight": 3.0}, {"Parameter.weight": 4.0}])
    (held,) = layout_by_marginals(ingest.open_store(store), f"{store}@0,0").tensors
    assert (held.groups, held.placement) == (((0,), (1,)), "")
