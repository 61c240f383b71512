"""The command line of the benchmarks."""

from importlib import import_module

import pytest

from bench.__main__ import LONG_PARTS, PARTS


@pytest.mark.parametrize("name", [*PARTS, *LONG_PARTS])
def test_each_part_measures_something(name: str) -> None:
    assert callable(import_module(f"bench.parts.{name}").measure)
