"""Figures of contenders, and the ratios of them: true on any machine."""

from bench.measure import HEADINGS, Measure, in_turns

FASTER = Measure("ingest", "cp -r", "s", (1.0, 2.0, 4.0), (3.0, 4.0, 4.0), floor=2.0)


def test_a_speed_is_the_median_of_the_ratios_of_rounds() -> None:
    assert FASTER.ratio == 2.0
    assert FASTER.reached
    assert FASTER.row() == ("ingest", "cp -r", "2 s", "4 s", "2.000", "≥ 2", "yes")
    assert len(FASTER.row()) == len(HEADINGS)


def test_contenders_take_turns() -> None:
    turns: list[str] = []

    def turn(name: str) -> float:
        turns.append(name)
        return len(turns)

    assert in_turns(2, {"a": lambda: turn("a"), "b": lambda: turn("b")}) == {"a": (1, 3), "b": (2, 4)}
    assert turns == ["a", "b", "a", "b"]
