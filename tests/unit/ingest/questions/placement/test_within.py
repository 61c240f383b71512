"""How the ranks of one run hold its tensors, without a reference."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.questions.placement.layout_answer import RunLayout
from ingest.store_gc.plan import GcPolicy
from tests.damages import only
from tests.gc_stores import age
from tests.laid_out import Lay, layout_of
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Dump, write
from tests.statistics_runs import ingest_statistics
from workers.errors import DamagedStore, UsageError


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


def test_steps_of_single_ranks_have_no_layout(made: MadeDump, store: Path) -> None:
    """A partial step is not damaged."""
    for rank in range(2):
        made.add(np.ones(3, np.float32), step=rank, rank=rank)
    ingest_directly(made.root, store)
    with pytest.raises(UsageError, match="no step has tensors on two ranks\n"):
        ingest.layout(ingest.open_store(store))
    made.add(b"no npy", step=1)
    made.add(np.ones(3, np.float32), step=1)
    ingest_directly(made.root, store)
    with pytest.raises(UsageError, match="rank 0 step 1: partial"):
        ingest.layout(ingest.open_store(store))
    shutil.rmtree(only(store, "rank_1/step_1/*/index"))
    with pytest.raises(DamagedStore, match="rank 1 step 1: damaged"):
        ingest.layout(ingest.open_store(store), include_partial=True)


def test_statistics_alone_tell_neither_a_layout_nor_a_mistake(tmp_path: Path) -> None:
    """A counter, which must be the same on all ranks, and tensors that may or may not be."""
    names = ("Parameter.weight", "Gradient.weight", "Parameter.global_step")
    store = ingest_statistics(tmp_path, [dict.fromkeys(names, 3.0), dict.fromkeys(names, 4.0)])
    layout = ingest.layout(ingest.open_store(store))
    known = {(kind.placement, kind.why) for kind in layout.kinds}
    assert known == {("?", "bytes are not known: only statistics were dumped")}
    assert (len(layout.kinds), layout.findings, layout.replicas) == (3, (), ())


def test_marginals_tell_it_when_gc_has_removed_the_elements(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    whole, total, own = (rng.standard_normal((2, 160, 200)).astype(np.float32) for _ in range(3))
    ranks: list[Dump] = [
        {
            "shard": np.split(whole[0], 2)[rank],
            "gathered": whole[0],
            "partial": total[rank],
            "reduced": total.sum(axis=0),
            "own": own[rank],
        }
        for rank in range(2)
    ]
    url = str(tmp_path / "run.zarr")
    ingest_directly(write(tmp_path / "dump", [ranks, ranks]), url, layout=LAYOUT, sketches=True)
    before = ingest.layout(ingest.open_store(url), 0)
    age(tmp_path / "run.zarr")
    plan = ingest.plan_gc(url, GcPolicy(tensors_around_anomalies=0))
    assert ingest.apply_gc(url, plan).objects
    after = ingest.layout(ingest.open_store(url), 0)
    shown = placements(after)
    assert shown == placements(before)
    assert (shown["shard"], shown["partial"]) == ("shard 0", "partial sum")
    assert (before.removed, after.removed) == (0, 1)
    known = {kind.name.split(".")[2]: kind.why for kind in after.kinds}
    assert known["shard"].endswith("gathered.output.0, by marginals: estimated")
    assert known["own"] == "bytes differ; its elements were removed"


@pytest.mark.usefixtures("torch")
def test_a_pass_that_trains_nothing_is_left_out_and_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stage of a pipeline that runs once to see the shapes."""
    import torch

    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        with ingest.record(model, tmp_path / "dump", what="tensors", advance="manual"):
            shapes = torch.full((3, 4), rank + 0.5, requires_grad=True)
            torch.autograd.grad(model(shapes).sum(), shapes)
            model(torch.ones(3, 4)).sum().backward()
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    assert ingest.layout(ingest.open_store(tmp_path / "run.zarr")).findings == ()


def test_a_sum_that_is_not_made_any_more_is_a_missing_reduction(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two groups of two ranks, each with a batch of its own: no two ranks hold all outputs alike."""
    torch.manual_seed(0)
    weight = torch.randn(12, 16)

    class Row(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, part: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(weight[:, 8 * part : 8 * part + 8].clone())

        def forward(self, x: Any) -> Any:
            return x @ self.weight.T if self.total is None else self.total

    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        net = torch.nn.Sequential(Row(rank % 2))
        torch.manual_seed(rank // 2)
        with ingest.record(net, tmp_path / "dump", what="tensors"):
            for is_reduced in (True, True, False):
                whole = torch.randn(6, 16)
                net[0].total = whole @ weight.T if is_reduced else None
                net(whole[:, 8 * (rank % 2) : 8 * (rank % 2) + 8])
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    (finding,) = ingest.layout(ingest.open_store(tmp_path / "run.zarr", mesh="dp=2,tp=2")).findings
    assert (finding.kind, finding.step, finding.name) == ("missing reduction", 2, "Module.Row.0.output.0")
    assert "as it was in an earlier step over 2" in finding.text
