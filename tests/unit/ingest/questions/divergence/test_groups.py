"""Groups of replicas, as they are typed."""

from typing import Any

import pytest

from ingest.questions.divergence import parse_groups
from ingest.questions.divergence.groups import checked_groups
from workers.errors import UsageError


@pytest.mark.parametrize("texts", [["0"], ["a"], ["3-1"], ["0-2", "2,3"], [""], ["0-99999999"], ["-1,2"]])
def test_what_is_no_group_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_groups(texts)


def test_groups_are_written_as_spans_and_lists() -> None:
    assert parse_groups(["0-2", "4,6, 8-9"]) == [[0, 1, 2], [4, 6, 8, 9]]


@pytest.mark.parametrize("groups", [[0, 1], "0-1", [[0, 1], 2]])
def test_ranks_in_place_of_groups_are_refused(groups: Any) -> None:
    with pytest.raises(UsageError, match="is not a group of ranks") as error:
        checked_groups(groups)
    assert error.value.hint
