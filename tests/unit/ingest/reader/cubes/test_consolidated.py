"""A search in the cubes is repeated if steps are rewritten meanwhile."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

import ingest
from ingest.api import ConsolidatedCubes, DumpStore, open_store
from ingest.reader.cubes.conditions import find as search
from workers.errors import DamagedStore


@pytest.fixture
def cubes(filled: DumpStore) -> ConsolidatedCubes:
    ingest.consolidate(filled.url)
    return open_store(filled.url).consolidated()


def rewrite(cubes: ConsolidatedCubes, rewrites: int) -> None:
    """Change the metadata as a consolidator does before it rewrites a step."""
    state = cubes.objects.get("consolidated/zarr.json")
    assert state is not None
    old = f'"rewrites":{rewrites}'.encode()
    assert old in state
    cubes.objects.put("consolidated/zarr.json", state.replace(old, f'"rewrites":{rewrites + 1}'.encode()))


def during_search(monkeypatch: pytest.MonkeyPatch, action: Callable[[int], None]) -> list[ConsolidatedCubes]:
    """Do something during each search; return the cubes that are searched."""
    searched: list[ConsolidatedCubes] = []

    def find(cubes: ConsolidatedCubes, *args: Any, **options: Any) -> pd.DataFrame:
        searched.append(cubes)
        action(len(searched) - 1)
        return search(cubes, *args, **options)

    monkeypatch.setattr("ingest.reader.cubes.conditions.find", find)
    return searched


def test_search_is_repeated_with_the_new_cubes(
    cubes: ConsolidatedCubes, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = during_search(monkeypatch, lambda number: rewrite(cubes, number) if number < 2 else None)
    assert len(cubes.find("nan_count > 0")) == 1
    assert [tried.state.rewrites for tried in searched] == [0, 1, 2]


def test_damage_is_raised_if_nothing_changed(cubes: ConsolidatedCubes) -> None:
    cubes.objects.put("consolidated/max/c/0/0/0", b"damaged")
    with pytest.raises(DamagedStore, match="consolidated/max"):
        cubes.find("max > 0")
