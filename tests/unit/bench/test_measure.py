"""Figures of contenders, and the ratios of them: true on any machine."""

import pytest

from bench.measure import HEADINGS, Measure, Ratio, Table, in_turns, median, seconds, seconds_each, shown

FASTER = Measure("ingest", "cp -r", "s", (1.0, 2.0, 4.0), (3.0, 4.0, 4.0), floor=2.0)
SHARE = Measure("stored", "raw", "MB", (40.0,), (100.0,), Ratio.SHARE, floor=0.33)


def test_a_speed_is_the_median_of_the_ratios_of_rounds() -> None:
    assert FASTER.ratio == 2.0
    assert FASTER.reached
    assert FASTER.row() == ("ingest", "cp -r", "2 s", "4 s", "2.000", "≥ 2", "yes")
    assert len(FASTER.row()) == len(HEADINGS)


def test_a_share_above_its_floor_is_not_reached() -> None:
    assert SHARE.ratio == pytest.approx(0.4)
    assert SHARE.reached is False
    assert SHARE.row()[-2:] == ("≤ 0.33", "NO")


def test_without_a_floor_nothing_is_reached_or_missed() -> None:
    assert Measure("a", "b", "s", (1.0,), (1.0,)).reached is None


def test_rounds_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rounds of ours, 1 of b"):
        Measure("a", "b", "s", (1.0, 2.0), (1.0,))


def test_json_has_every_round() -> None:
    row = FASTER.to_json()
    assert (row["ours"], row["other"], row["ratio"], row["ratio_is"]) == (
        [1.0, 2.0, 4.0],
        [3.0, 4.0, 4.0],
        2.0,
        "times as fast",
    )
    assert Table("T", ("a",), (("1",),), "Note.").to_json() == {
        "title": "T",
        "columns": ["a"],
        "rows": [["1"]],
        "note": "Note.",
    }


def test_contenders_take_turns() -> None:
    turns: list[str] = []

    def turn(name: str) -> float:
        turns.append(name)
        return len(turns)

    assert in_turns(2, {"a": lambda: turn("a"), "b": lambda: turn("b")}) == {"a": (1, 3), "b": (2, 4)}
    assert turns == ["a", "b", "a", "b"]


def test_many_calls_are_measured_until_the_time_is_up() -> None:
    calls: list[None] = []
    assert 0 < seconds_each(lambda: calls.append(None), at_least_s=0.001) < 0.001
    assert len(calls) > 1
    assert seconds(lambda: calls.append(None)) > 0


def test_figures_have_three_digits() -> None:
    assert [shown(figure) for figure in (1240.4, 12.36, 0.01236, 0)] == ["1240", "12.4", "0.0124", "0"]
    assert median([3, 1, 2]) == 2
