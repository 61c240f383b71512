"""A card for each incident."""

from pathlib import Path

import numpy as np
import pytest

from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.incidents import SCREEN
from ingest.reader.dump_store import open_store
from ingest.wiring.consolidation import consolidate
from tests.made_runs import numbers
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, write
from workers.errors import UsageError


def asked(moment: Moment, **given: str) -> Asked:
    return Asked(moment, Arguments.of(given, SCREEN.parameters), Links("", "run.zarr"))


def test_one_incident_or_those_of_a_step_are_chosen(moment: Moment) -> None:
    first = SCREEN.show(asked(moment))["cards"][0]["incident"]
    assert [card["incident"].id for card in SCREEN.show(asked(moment, id=first.id))["cards"]] == [first.id]
    with pytest.raises(UsageError, match="no incident 'nothing'"):
        SCREEN.show(asked(moment, id="nothing"))
    before = SCREEN.show(asked(moment, step="1", rank="0"))
    assert (before["total"], before["seen"]) == (0, "rank 0, step 1")
    assert "--step 1" in before["lines"].shell


def test_the_card_of_a_step_that_a_rank_lacks_leads_to_the_matrix(made: MadeDump, store: Path) -> None:
    for rank, step in ((0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2), (1, 2), (2, 2)):
        made.add(numbers(1), tensor_name("Mul.m", time=1), rank=rank, step=step)
    ingest_directly(made.root, store)
    consolidate(store)
    (card,) = SCREEN.show(asked(Moment.of(open_store(store))))["cards"]
    assert (card["incident"].rank, card["incident"].first_step) == (1, 1)
    assert card["look_url"].endswith("/matrix?steps=1-1")
    assert card["look_words"] == "matrix of these steps"


def test_a_divergence_shows_what_ranks_hold_and_should_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    steps = [
        [{f"{kind}.w{n}": rng.normal(size=(4, 3)) for kind in ("param", "exp_avg") for n in "012"}] * 2
        for _ in range(3)
    ]
    steps[2][1] = steps[2][1] | {"exp_avg.w1": steps[1][1]["exp_avg.w1"]}
    write(tmp_path / "dump", steps)
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr", layout=LAYOUT)
    consolidate(tmp_path / "run.zarr")
    moment = Moment.of(open_store(tmp_path / "run.zarr"))
    (card,) = (card for card in SCREEN.show(asked(moment))["cards"] if card["incident"].kind == "divergence")
    assert card["misplaced"] == ()
    (alone,) = SCREEN.show(asked(moment, id=card["incident"].id))["cards"]
    assert [finding.kind for finding in alone["misplaced"]] == ["optimizer state out of step"]
