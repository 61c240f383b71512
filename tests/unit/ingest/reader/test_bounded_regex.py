"""A regular expression of a user ends."""

import pytest

from ingest.questions.name_pattern import BoundedPattern
from workers.errors import UsageError


def test_it_is_searched_for_like_a_pattern() -> None:
    pattern = BoundedPattern(r"^Log\..*output\.(\d+)$")
    assert pattern.search("Log.net-op0.output.0")
    assert pattern.search("MatMul.net-op0.output.0") is None


def test_one_that_backtracks_without_end_is_given_up() -> None:
    pattern = BoundedPattern(r"^(a|aa)+[^a]$", limit_s=0.2)
    with pytest.raises(UsageError, match="takes too long for 'aaa"):
        pattern.search("a" * 80)
