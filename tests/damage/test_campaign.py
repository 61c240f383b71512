"""A sample of the campaign: every kind of object is deleted or swapped, and a few questions are asked."""

import pytest

from tests.damage.campaign import Campaign, Case, Outcome
from tests.damage.spoil import damages_of
from tests.damage.whole_store import make

#: What most people ask, and what shows whether the judge tells right from wrong.
ASKED = ("ls tensors", "find", "find cubes", "origin", "anomalies", "export", "verify")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(make(tmp_path_factory.mktemp("damage")), ASKED)


def cases_of(campaign: Campaign, kind: str) -> list[Case]:
    (stored,) = (one for one in campaign.inventory.representatives if one.kind == kind)
    damages = [*damages_of(stored, campaign.whole.store, flips=1, seed=0)]
    return [case for damage in damages for case in campaign.cases(stored, damage)]


TABLES = [
    f"rank_{{n}}/step_{{n}}/{{name}}/{name}/c" for name in ("index/labels", "index/digest", "statistics")
]


VIEW = ["consolidated/{statistic}/c", "consolidated/row/c", "consolidated/zarr.json"]

#: A table, the view, and what describes a step and the store; `make campaigns` damages the others as well.
SUITE = [TABLES[0], TABLES[2], VIEW[0], "rank_{n}/step_{n}/zarr.json", "zarr.json"]


@pytest.mark.parametrize(
    "kind", [*SUITE, *(pytest.param(kind, marks=pytest.mark.campaign) for kind in (TABLES[1], *VIEW[1:]))]
)
def test_no_answer_is_wrong_without_naming_the_damage(campaign: Campaign, kind: str) -> None:
    cases = cases_of(campaign, kind)
    assert [str(case) for case in cases if case.outcome.is_fault] == []
    assert {case.outcome for case in cases} & {Outcome.NAMED}


def test_the_store_is_as_it_was_after_each_case(campaign: Campaign) -> None:
    before = {path: path.read_bytes() for path in campaign.whole.store.rglob("*") if path.is_file()}
    assert cases_of(campaign, "zarr.json")
    assert {path: path.read_bytes() for path in campaign.whole.store.rglob("*") if path.is_file()} == before


def test_an_answer_that_hides_damage_is_found(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.store.tables.refuse_foreign", lambda *_: None)
    outcomes = {(case.question, case.outcome) for case in cases_of(campaign, TABLES[2])}
    assert ("ls tensors", Outcome.WRONG) in outcomes
