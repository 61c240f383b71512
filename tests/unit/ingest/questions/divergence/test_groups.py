"""Groups of replicas, as they are typed."""

import pytest

from ingest.questions.divergence import parse_groups
from workers.errors import UsageError


@pytest.mark.parametrize("texts", [["0"], ["a"], ["3-1"], ["0-2", "2,3"], [""], ["0-99999999"], ["-1,2"]])
def test_what_is_no_group_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_groups(texts)


def test_groups_are_written_as_spans_and_lists() -> None:
    assert parse_groups(["0-2", "4,6, 8-9"]) == [[0, 1, 2], [4, 6, 8, 9]]
