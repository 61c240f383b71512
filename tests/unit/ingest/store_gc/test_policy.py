"""What a user may ask of gc."""

import pytest

from ingest.store_gc.plan import DAY_S, GcPolicy, duration, parse_duration
from workers.errors import UsageError


def test_durations_are_read_in_any_unit() -> None:
    texts = ("90s", "1.5h", "30d", "2W")
    assert [parse_duration(text) for text in texts] == [90, 5400, 30 * DAY_S, 14 * DAY_S]


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "inf"])
def test_a_duration_without_number_or_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a valid duration"):
        parse_duration(text)


def test_durations_are_written_in_the_largest_unit_that_is_whole() -> None:
    lengths = (90, 5400, 30 * DAY_S, 0, 7200)
    assert [duration(seconds) for seconds in lengths] == ["90s", "90m", "30d", "0s", "2h"]


@pytest.mark.parametrize(
    ("wrong", "lowest"),
    [({"keep_last": 0}, 1), ({"grace_s": -1.0}, 0), ({"older_than_s": float("nan")}, 0)],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float], lowest: int) -> None:
    with pytest.raises(UsageError, match="out of range") as refusal:
        GcPolicy(**wrong)  # type: ignore[arg-type]  # wrong on purpose
    assert refusal.value.hint == f"Give a number of at least {lowest}."
