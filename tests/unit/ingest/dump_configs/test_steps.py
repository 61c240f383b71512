"""Lists of steps."""

import pytest

from ingest.dump_configs.steps import format_steps
from ingest.layouts.mindspore import parse_iterations


@pytest.mark.parametrize("steps", [[8], [1, 2], [0, 5, 6, 7, 100], [3, 1, 2, 2]])
def test_what_is_written_is_read_back(steps: list[int]) -> None:
    assert parse_iterations(format_steps(steps)) == frozenset(steps)
