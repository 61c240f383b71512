"""`compare --over-steps`: the rank that is compared, and the steps that fit on a line."""

from typing import Any

import pytest

from ingest.api import DumpStore
from ingest.cli.compare_report import growth_between
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
