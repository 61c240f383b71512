"""How the ranks of one run hold its tensors, without a reference."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.placement.layout_answer import RunLayout
from tests.laid_out import Lay, layout_of
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, write
from workers.errors import UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.model import StoreAddress
from workers.store.opening import open_objects
from workers.store.record import WithoutTensors


def placements(layout: RunLayout) -> dict[str, str]:
    return {
        kind.name.removeprefix("Module..").removesuffix(".output.0"): kind.placement for kind in layout.kinds
    }


def test_replicas_sums_and_gathered_shards_are_told_apart(lay: Lay) -> None:
    layout = lay(2, 2)
    shown = placements(layout)
    assert layout.findings == ()
    assert shown["param.norm.weight"] == "replicated"
    assert shown["embed"] == "replicated in 0-1; 2-3"
    assert layout.replicas == ((0, 2), (1, 3))
    whole = placements(lay(2, 1))
    assert whole["layers.0.proj.partial"] == "partial sum"
    assert whole["layers.0.qkv"] == "each rank its own"
    assert layout.to_dict()["kinds"][0]["ranks"] == [0, 1, 2, 3]
    assert "<table" in layout._repr_html_()


@pytest.mark.parametrize(
    ("bug", "tp", "dp", "kind", "name"),
    [
        ("BUG missing reduction", 2, 1, "missing reduction", "layers.1.proj"),
        ("BUG a gradient is not reduced", 1, 2, "missing reduction", "grad.param.layers.2.fc2.weight"),
    ],
)
def test_mistakes_are_found_without_a_reference(
    lay: Lay, bug: str, tp: int, *, dp: int, kind: str, name: str
) -> None:
    findings = lay(tp, dp, bug).findings
    assert (kind, f"Module..{name}.output.0") in [(found.kind, found.name) for found in findings]


def test_a_single_rank_has_no_layout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a layout takes several ranks"):
        layout_of(tmp_path, [[{"x": np.ones(3, np.float32)}]])


@pytest.mark.parametrize("marginals", [True, False], ids=["marginals", "digests alone"])
def test_what_remains_of_removed_tensors_answers(tmp_path: Path, marginals: bool) -> None:
    rng = np.random.default_rng(3)
    total, part, cut = (rng.normal(size=(384, 400)).astype(np.float32) for _ in range(3))
    halves = np.split(cut, 2)
    ranks = [
        {"partial": held, "total": total, "shard": half, "gathered": cut, "own": noise[:7]}
        for held, half, noise in zip((part, total - part), halves, (part, cut), strict=True)
    ]
    store = tmp_path / "store"
    ingest_directly(write(tmp_path / "dump", [ranks]), store, layout=LAYOUT, sketches=marginals)
    before = ingest.layout(ingest.open_store(store))
    objects = open_objects(StoreAddress(str(store)))
    for rank in (0, 1):
        committed = commit.read(objects, StepKey(rank, 0))
        assert committed is not None
        commit.drop_tensors(objects, committed, WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old"))

    after = ingest.layout(ingest.open_store(store))

    if marginals:
        assert placements(after) == placements(before)
        assert placements(after)["partial"] == "partial sum"
        assert placements(after)["shard"] == "shard 0"
    why = {kind.name.split(".")[2]: kind.why for kind in after.kinds}
    gone = "bytes differ; the elements were removed"
    assert why["own"] == gone
    assert why["gathered"] == "equal bytes"
    total_name, cut_name = (f"Module..{name}.output.0" for name in ("total", "gathered"))
    assert why["partial"] == (f"makes up {total_name}, by marginals" if marginals else gone)
    assert why["shard"] == (f"makes up {cut_name}, by marginals" if marginals else gone)
