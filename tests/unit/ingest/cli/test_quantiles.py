"""`dump-ingest quantiles` as it is typed."""

from pathlib import Path

from tests.cli import Answer


def test_percentiles_are_shown_with_their_bounds(sketched_store: Path, answer: Answer) -> None:
    options = ("quantiles", sketched_store, "Log.*.output.0", "-r", 1, "-n", 2, "-p", 0, "-p", 50)
    heading, line = answer(*options).stdout.splitlines()
    assert heading.split() == ["rank", "step", "name", "p0", "p50"]
    assert line.split()[-2:] == ["-0.883413", "-0.883413..-0.516865"]
    assert answer(*options, "--exact").stdout.splitlines()[1].split()[-1].startswith("-0.6")
