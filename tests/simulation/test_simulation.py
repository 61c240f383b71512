"""The simulator finds nothing wrong in many schedules, replays what it finds, and finds planted bugs."""

import subprocess
import sys
from typing import get_args

import pytest

from tests.simulation.__main__ import main
from tests.simulation.planted import BUGS, Planted, planted
from tests.simulation.search import play, shortest, trace
from tests.simulation.world import Cast, Setting

#: Schedules of the suite, a few seconds on a quiet core; `make campaigns` and `make simulate` play more.
SCHEDULES = 500
CAMPAIGN_SCHEDULES = 5000
#: Schedules of each cast that is played by its name: a second or two.
NAMED_SCHEDULES = 30
#: Each planted bug shows in this many schedules.
_MOST = 3000


@pytest.mark.parametrize(
    "schedules", [SCHEDULES, pytest.param(CAMPAIGN_SCHEDULES, marks=pytest.mark.campaign)]
)
def test_no_invariant_is_violated(schedules: int) -> None:
    """Always the same schedules, on any machine."""
    played = play(range(1, schedules + 1), Setting())
    assert played.found == []
    assert played.schedules == schedules


@pytest.mark.parametrize("cast", ["pool", "recompress", "copies"])
def test_no_invariant_is_violated_in_casts_that_are_played_by_name(cast: Cast) -> None:
    assert play(range(1, NAMED_SCHEDULES + 1), Setting(cast)).found == []


def test_gc_ends_changes_of_killed_writers() -> None:
    lines = [line for seed in range(1, 21) for line in trace(seed, Setting("copies"))[0]]
    assert any(" gc " in line and "put consolidated/changed" in line and ".done-" in line for line in lines)


def test_steps_are_encoded_again() -> None:
    lines = [line for seed in range(1, 6) for line in trace(seed, Setting("recompress"))[0]]
    assert any("recompress" in line and line.endswith(": done") for line in lines)


@pytest.mark.parametrize("cast", get_args(Cast))
def test_a_seed_replays(cast: Cast) -> None:
    first, second = trace(7, Setting(cast)), trace(7, Setting(cast))
    assert first[0] == second[0]
    assert len(first[0]) > 5


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    """Found, replayed from its seed, and made short enough to read."""
    setting = Setting(bug.cast, only=bug.only)
    with planted(bug):
        found = play(range(bug.first, bug.first + _MOST), setting).found
        assert [violating.invariant for violating in found] == [bug.invariant]
        lines, violation = trace(found[0].seed, setting)
        assert str(violation) == found[0].message
        few, shorter = shortest(found[0].seed, setting, most_replays=60)
    assert shorter.invariant == found[0].invariant
    assert len(few) <= len(lines)
    assert play([found[0].seed], setting).found == [], "without the bug, the schedule violates nothing"


def test_the_command_prints_rate_seed_and_shortest_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    """With one process, so that the bug is planted in the one that plays."""
    (bug,) = [bug for bug in BUGS if bug.name == "steps without silence"]
    with planted(bug):
        assert main(["--schedules", "600", "--cast", bug.cast, "--processes", "1"]) == 1
        printed = capsys.readouterr().out
        assert "per second" in printed
        seed = printed.partition("seed ")[2].split()[0]
        assert f"python -m tests.simulation --trace --seed {seed} --cast {bug.cast}" in printed
        assert "the shortest schedule like it:" in printed
        assert main(["--trace", "--seed", seed, "--cast", bug.cast]) == 1
        assert capsys.readouterr().out.splitlines()[-1] in printed


def test_several_processes_play_what_one_does() -> None:
    """As `make simulate` does it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--schedules", "20", "--processes", "2"],
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    assert done.stdout.startswith("20 schedules")
    assert "no invariant was violated" in done.stdout
