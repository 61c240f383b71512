"""Which steps `divergence` has `layout` look at."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.placement import mistakes
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Config, Dump, simulate, write

Ranks = list[Dump]

#: What `layout` finds without a reference, by how the net is cut.
MISTAKES = {
    "BUG missing reduction": (2, 1, 1),
    "BUG two ranks load one shard": (2, 1, 1),
    "BUG bias on every rank": (2, 1, 1),
    "BUG read before the reduction is finished": (2, 1, 1),
    "BUG a gradient is not reduced": (1, 2, 1),
    "BUG replicas drift apart": (1, 2, 2),
    "BUG a rank is not updated": (2, 2, 2),
}


def store_of(root: Path, steps: list[Ranks]) -> ingest.DumpStore:
    write(root / "dump", steps)
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    return ingest.open_store(root / "run.zarr")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_divergence_has_the_findings_of_layout(tmp_path: Path, mistake: str) -> None:
    tp, dp, steps = MISTAKES[mistake]
    store = store_of(tmp_path, simulate(Config(tp, dp, frozenset({mistake}), steps)))
    expected = ingest.layout(store).findings
    answer = ingest.divergence(store)
    assert answer.misplaced == expected
    assert ingest.divergence(store, layout=False).misplaced == ()
    if expected:
        assert not answer.agree
        assert answer.to_dict()["misplaced"][0]["name"] == expected[0].name
        assert expected[0].kind in answer._repr_html_() or answer.broken
        assert ingest.divergence(store, name=expected[0].name).misplaced == tuple(
            finding for finding in expected if finding.name == expected[0].name
        )


@pytest.mark.parametrize(("tp", "dp"), [(2, 1), (1, 2), (2, 2)])
def test_nothing_more_is_read_of_a_run_without_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tp: int, dp: int
) -> None:
    store = store_of(tmp_path, simulate(Config(tp, dp, frozenset(), 2)))
    looked_at: list[Sequence[int]] = []

    def note(_: object, steps: Sequence[int]) -> list[object]:
        looked_at.append(steps)
        return []

    monkeypatch.setattr(mistakes, "find_mistakes", note)
    assert ingest.divergence(store).agree
    assert looked_at == []
    assert ingest.layout(store).findings == ()


def test_of_many_steps_with_a_mistake_two_are_looked_at(tmp_path: Path) -> None:
    steps = simulate(Config(2, 1, frozenset({"BUG missing reduction"}), 4))
    answer = ingest.divergence(store_of(tmp_path, steps))
    assert {finding.step for finding in answer.misplaced} == {0, 1}
    assert any("2 more look alike: dump-ingest layout" in note for note in answer.notes)


def test_a_state_of_the_step_before_is_recognised_late_in_a_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    steps: list[Ranks] = []
    for _ in range(5):
        both = {f"{kind}.w{n}": rng.standard_normal((4, 3)) for kind in ("param", "exp_avg") for n in "012"}
        steps.append([dict(both), dict(both)])
    steps[4][1]["exp_avg.w1"] = steps[3][1]["exp_avg.w1"]
    (finding,) = ingest.divergence(store_of(tmp_path, steps)).misplaced
    assert (finding.step, finding.ranks) == (4, (0, 1))
    assert finding.kind == "optimizer state out of step"
    assert "rank 1 has that of step 3" in finding.text
