"""A step is named by its store, rank and step."""

from pathlib import Path

import pytest

from bench.steps import commit_tables, make_tables
from ingest.questions.localize import named_steps
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.opening import open_objects, resolve


@pytest.fixture
def names(store: Path) -> list[str]:
    """The names of two steps of a store."""
    objects = open_objects(resolve(store))
    keys = [StepKey(rank, 4) for rank in range(2)]
    for key in keys:
        commit_tables(objects, key, make_tables(key, ["op"]))
    return [f"{store}@{key.rank},{key.step}" for key in keys]


@pytest.mark.parametrize("end", ["", "@0", "@step=4"])
def test_a_name_without_rank_or_step_is_refused(names: list[str], end: str) -> None:
    with pytest.raises(UsageError, match="does not name a rank and a step"):
        named_steps(names[0].partition("@")[0] + end)
