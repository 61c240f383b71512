"""What is compared, as it is typed."""

import pytest

from ingest.questions.compare.selection import parse_selection
from workers.errors import UsageError


@pytest.mark.parametrize(
    "text", ["r@x", "r@1,2,3", "r@-1", "r@rank=1,rank=2", "r@1,rank=2", "r@", "r@99999999999999999999"]
)
def test_what_is_no_rank_and_step_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rank and step"):
        parse_selection(text)
