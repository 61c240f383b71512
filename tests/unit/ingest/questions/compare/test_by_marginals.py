"""Marginals propose how ranks hold a tensor; elements confirm it, or are gone."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from ingest.questions.compare import placing
from ingest.questions.compare.result import Comparison, Verdict
from ingest.questions.compare.run import compare
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Dump, write
from workers.model import StepKey
from workers.store import commit
from workers.store.model import StoreAddress
from workers.store.opening import open_objects
from workers.store.record import WithoutTensors
from workers.tasks.compare import search_placements

RNG = np.random.default_rng(11)
#: Large enough for marginals of both axes, also of halves.
SHAPE = (512, 640)
WHOLE = {name: RNG.normal(size=SHAPE).astype(np.float32) for name in ("rows", "columns", "sum", "same")}
NOISE = RNG.normal(size=SHAPE).astype(np.float32)
SUM = [WHOLE["sum"] - NOISE, NOISE]
RANKS: list[Dump] = [
    {
        "rows": np.split(WHOLE["rows"], 2)[rank],
        "columns": np.split(WHOLE["columns"], 2, axis=1)[rank],
        "sum": SUM[rank],
        "same": WHOLE["same"],
        "small": np.arange(6, dtype=np.float32).reshape(2, 3)[:, rank : rank + 2],
    }
    for rank in (0, 1)
]
HELD = {"rows": "shard 0", "columns": "shard 1", "sum": "partial sum", "same": "replicated"}


def stored(root: Path, name: str, ranks: list[Dump]) -> Path:
    store = root / f"{name}.zarr"
    ingest_directly(write(root / name, [ranks]), store, layout=LAYOUT, sketches=True)
    return store


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two ranks, and one that has all."""
    root = tmp_path_factory.mktemp("marginals")
    return stored(root, "two", RANKS), stored(root, "one", [WHOLE])


def placements(answer: Comparison) -> dict[str, tuple[str, str]]:
    return {
        row.name_a.split(".")[2]: (row.held.placement, row.held.certainty)
        for row in answer.tensors
        if row.held is not None
    }


def test_only_what_marginals_leave_open_is_searched_by_elements(stores: tuple[Path, Path]) -> None:
    with patch.object(placing, "search_placements", wraps=search_placements) as searching:
        answer = compare(*stores, keep_equal=True, ignore_unmatched=True)
    assert placements(answer) == {name: (how, "certain") for name, how in HELD.items()}
    assert answer.is_within
    assert not [question for call in searching.call_args_list for question in call.args[0]]
    (row,) = (row for row in answer.tensors if ".sum." in row.name)
    assert row.held is not None
    assert "by marginals, every other plain way is off by" in row.held.explanation


def test_elements_refute_what_marginals_propose(tmp_path: Path) -> None:
    """Four elements differ so that no sum and hardly a norm of a row or column does."""
    whole = np.ones(SHAPE, np.float32) + np.eye(*SHAPE, dtype=np.float32)
    other = whole.copy()
    other[:2, 100:102] += np.array([[0.5, -0.5], [-0.5, 0.5]], np.float32)
    a = stored(tmp_path, "a", [{"x": part} for part in np.split(other, 2)])
    b = stored(tmp_path, "b", [{"x": whole}])
    (row,) = compare(a, b, keep_equal=True).tensors
    assert row.held is not None
    assert "by marginals" not in row.held.explanation
    assert row.verdict is Verdict.DIFFERENT
    assert row.held.placement == "shard 0"


def test_marginals_answer_where_tensors_are_gone(tmp_path: Path) -> None:
    two, one = stored(tmp_path, "two", RANKS), stored(tmp_path, "one", [WHOLE])
    objects = open_objects(StoreAddress(str(two)))
    for rank in (0, 1):
        committed = commit.read(objects, StepKey(rank, 0))
        assert committed is not None
        commit.drop_tensors(objects, committed, WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old"))
    answer = compare(two, one, keep_equal=True, ignore_unmatched=True)
    by_marginals = {name: (how, "by marginals") for name, how in HELD.items()}
    expected = by_marginals | {"same": ("replicated", "certain")}
    assert placements(answer) == expected
    rows = {row.name_a.split(".")[2]: row for row in answer.tensors}
    assert (rows["rows"].verdict, rows["rows"].basis) == (Verdict.CLOSE, "marginals")
    assert (rows["same"].verdict, rows["same"].basis) == (Verdict.EQUAL, "digest")
    assert "elements were removed from the store" in rows["sum"].reason
    alone = compare(f"{two}@0", f"{one}@0", ignore_unmatched=True)
    assert any(row.basis == "statistics" for row in alone.tensors)
