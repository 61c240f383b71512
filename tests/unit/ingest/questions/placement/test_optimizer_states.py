"""States of optimizers that are of another step, or than those of replicas."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.placement.layout_answer import LayoutFinding
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Dump, write

Change = Callable[[list[list[Dump]]], None]


def trained(ranks: int) -> list[list[Dump]]:
    """Return what replicas dump of three steps: parameters, two states of each, and a counter."""
    steps = []
    for step in range(3):
        rng = np.random.default_rng(step)
        dump: Dump = {"optimizer.step": np.array(step + 1, np.int64)}
        for name in ("fc1.weight", "fc2.weight"):
            dump[f"param.{name}"] = rng.normal(size=(4, 3)).astype(np.float32)
            dump[f"exp_avg.{name}"] = rng.normal(size=(4, 3)).astype(np.float32)
            dump[f"{name}.exp_avg_sq"] = rng.normal(size=(4, 3)).astype(np.float32)
        steps.append([dict(dump) for _ in range(ranks)])
    return steps


def found(root: Path, ranks: int, change: Change) -> list[LayoutFinding]:
    steps = trained(ranks)
    change(steps)
    write(root / "dump", steps)
    ingest_directly(root / "dump", root / "store", layout=LAYOUT)
    return list(ingest.layout(ingest.open_store(root / "store")).findings)


def test_healthy_states_are_not_reported(tmp_path: Path) -> None:
    assert found(tmp_path, 2, lambda _: None) == []


@pytest.mark.parametrize("name", ["exp_avg.fc1.weight", "fc1.weight.exp_avg_sq"])
def test_the_state_of_the_step_before_is_found(tmp_path: Path, name: str) -> None:
    def stale(steps: list[list[Dump]]) -> None:
        steps[2][1][name] = steps[1][1][name]

    (finding,) = [finding for finding in found(tmp_path, 3, stale) if "optimizer" in finding.kind]
    assert (finding.kind, finding.step, finding.ranks) == ("optimizer state out of step", 2, (1,))
    assert name in finding.name
    assert "rank 1 has that of step 1" in finding.text


def test_of_two_replicas_either_may_be_wrong(tmp_path: Path) -> None:
    def other(steps: list[list[Dump]]) -> None:
        for step in steps:
            step[1]["exp_avg.fc2.weight"] = step[1]["exp_avg.fc2.weight"] + 1

    (finding,) = [finding for finding in found(tmp_path, 2, other) if "optimizer" in finding.kind]
    assert (finding.step, finding.ranks, finding.follows) == (0, (0, 1), 2)
    assert "hold the same Module..param.fc2.weight.output.0" in finding.text


def test_a_counter_that_lags_is_found(tmp_path: Path) -> None:
    def lag(steps: list[list[Dump]]) -> None:
        steps[2][1]["optimizer.step"] = np.array(2, np.int64)

    (finding,) = found(tmp_path, 3, lag)
    assert (finding.ranks, finding.kind) == ((1,), "optimizer state out of step")
    assert "rank 1 has that of step 1" in finding.text


def test_states_that_are_cut_by_rank_are_right(tmp_path: Path) -> None:
    """ZeRO: each rank has a part of each state."""

    def cut(steps: list[list[Dump]]) -> None:
        for step in steps:
            for rank, dump in enumerate(step):
                for name in [name for name in dump if "exp_avg" in name]:
                    dump[name] = dump[name][2 * rank : 2 * rank + 2]

    assert [finding for finding in found(tmp_path, 2, cut) if "optimizer" in finding.kind] == []
