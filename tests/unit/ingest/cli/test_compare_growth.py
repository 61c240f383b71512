"""`compare --over-steps`: the rank that is compared, and the steps that fit on a line."""

from typing import Any

import pytest

from ingest.api import DumpStore
from ingest.cli.compare_report import _spread, growth_between
from tests.diverging import WEIGHT, replicas
from tests.replicas import Replicas
from workers.errors import UsageError

Patch = pytest.MonkeyPatch


@pytest.fixture
def stores(monkeypatch: Patch) -> dict[str, DumpStore]:
    """Two runs of two ranks and one of a single rank, by URL."""
    single = Replicas()
    for step in range(4):
        single.put(1, step, {WEIGHT: step})
    known = {"a": replicas(range(2)).store, "b": replicas(range(2), off=[(1, 2, WEIGHT)]).store}
    known["single"] = single.store
    monkeypatch.setattr("ingest.open_store", lambda where, **_: known[where])
    return known


@pytest.mark.usefixtures("stores")
def test_the_rank_is_named_or_is_the_only_one_in_common() -> None:
    assert growth_between("a@1", "b", {}, {}).rank == 1
    assert growth_between("a", "b@0", {}, {}).rank == 0
    assert growth_between("a", "single", {}, {}).rank == 1


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize(
    ("a", "b", "conditions", "message"),
    [
        ("a", "b", {}, "one rank of both runs"),
        ("a@0", "b@1", {}, "one rank of both runs"),
        ("a@0,1", "b", {}, "about all steps"),
        ("a@0", "b", {"op_type": "Adam"}, "by --name alone"),
        ("a@0", "b", {"name": ["x", "y"]}, "by --name alone"),
    ],
)
def test_what_is_not_about_one_rank_over_all_steps_is_refused(
    a: str, b: str, conditions: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        growth_between(a, b, conditions, {})


@pytest.mark.parametrize(
    ("length", "columns"),
    [(0, []), (1, [0]), (2, [0, 1]), (8, [*range(8)]), (15, [0, 2, 4, 6, 8, 10, 12, 14])],
)
def test_the_first_and_the_last_step_have_a_column(length: int, columns: list[int]) -> None:
    assert _spread(length) == columns
    assert len(_spread(10_000)) == 8
