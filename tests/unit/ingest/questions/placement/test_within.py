"""How the ranks of one run hold its tensors, without a reference."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.placement.layout_answer import RunLayout
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Config, Dump, simulate, write
from workers.errors import UsageError

Lay = Callable[..., RunLayout]


def held(root: Path, steps: list[list[Dump]]) -> RunLayout:
    write(root / "dump", steps)
    ingest_directly(root / "dump", root / "store", layout=LAYOUT)
    return ingest.layout(ingest.open_store(root / "store"))


@pytest.fixture(scope="module")
def lay(tmp_path_factory: pytest.TempPathFactory) -> Lay:
    def run(tp: int, dp: int, *flags: str, changed: Callable[[list[Dump]], None] | None = None) -> RunLayout:
        (ranks,) = simulate(Config(tp, dp, frozenset(flags), 1))
        if changed is not None:
            changed(ranks)
        return held(tmp_path_factory.mktemp("layout"), [ranks])

    return run


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


def test_a_rank_with_the_shard_of_another_is_found(lay: Lay) -> None:
    def repeat(ranks: list[Dump]) -> None:
        ranks[1]["param.layers.1.fc1.weight"] = ranks[0]["param.layers.1.fc1.weight"]

    (found,) = lay(2, 1, changed=repeat).findings
    assert (found.kind, found.ranks) == ("wrong shard", (0, 1))
    assert "hold the same bytes" in found.text
    assert found.to_dict()["step"] == 0


def test_a_bias_that_every_rank_adds_is_found(lay: Lay) -> None:
    def add_twice(ranks: list[Dump]) -> None:
        for dump in ranks:
            name = "layers.1.fc2"
            dump[name] = dump[name] + dump[f"param.{name}.bias"]

    (found,) = lay(2, 1, changed=add_twice).findings
    assert found.kind == "bias on every rank"
    assert "2 times Module..param.layers.1.fc2.bias.output.0" in found.text


def test_a_single_rank_has_no_layout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a layout takes several ranks"):
        held(tmp_path, [[{"x": np.ones(3, np.float32)}]])
