"""Names that resemble those of ranks and steps; `test_places.py` shows where they are reported."""

import pytest

from ingest.layouts.places import is_like_rank, is_like_step, misnamed_rank, misnamed_step


@pytest.mark.parametrize(
    ("name", "is_rank", "is_step"),
    [
        ("rank_00", True, False),
        ("Rank-1.bak", True, False),
        ("rank 3", True, False),
        ("rank_logs", False, False),
        ("ranks", False, False),
        ("-1", False, True),
        ("٣", False, True),
        ("12345678901234567890", False, True),
        ("latest", False, False),
    ],
)
def test_what_resembles_a_rank_or_a_step(name: str, *, is_rank: bool, is_step: bool) -> None:
    assert (is_like_rank(name), is_like_step(name)) == (is_rank, is_step)


def test_a_number_is_left_out_and_says_what_to_do() -> None:
    for problem in (misnamed_rank("a/rank_-1", "a/rank_-1/Net"), misnamed_step("rank_0/Net/0/-1")):
        assert problem.left_out
        assert problem.misnamed
        assert "Rename the directory" in problem.hint
    assert misnamed_rank("a/rank_-1", "a/rank_-1/Net").path == "a/rank_-1"
    other = misnamed_rank("rank1x", "rank1x/Net")
    assert (other.path, other.left_out, other.hint) == ("rank1x/Net", False, "")
