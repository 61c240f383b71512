"""The seed alone determines schedule and story, and both contain what they should."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.plan import KINDS, Fault, schedule
from tests.faults.story import Job, Manner, Op, manners, story

SEEDS = st.integers(0, 2**31)
DURATIONS = st.floats(1, 3000)


def test_a_seed_gives_the_same_schedule_in_every_version() -> None:
    """A seed that somebody reports must lead to what they saw."""
    assert schedule(8, 60, KINDS)[:3] == [
        Fault(5.0, 14.6, "clock of consolidator +2 h", victim=29, severity=0.444),
        Fault(14.2, 17.8, "refused connections", victim=41, severity=0.049),
        Fault(24.4, 32.5, "clock +10 min", victim=50, severity=0.076),
    ]


@settings(deadline=None)
@given(SEEDS, DURATIONS)
def test_each_fault_is_healed_in_time_and_lasts_as_long_as_its_kind(seed: int, seconds: float) -> None:
    faults = schedule(seed, seconds, KINDS)
    assert faults == sorted(faults, key=lambda fault: fault.at_s)
    for fault in faults:
        assert 0 <= fault.at_s <= fault.until_s <= seconds
        shortest, longest = next(kind.hold_s for kind in KINDS if kind.name == fault.name)
        assert shortest - 0.06 <= fault.until_s - fault.at_s <= longest + 0.06


@settings(deadline=None, max_examples=20)
@given(SEEDS)
def test_every_kind_occurs_before_any_occurs_again(seed: int) -> None:
    names = [fault.name for fault in schedule(seed, 3600, KINDS)]
    for start in range(0, len(names) - len(KINDS) + 1, len(KINDS)):
        assert len(set(names[start : start + len(KINDS)])) == len(KINDS)


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 5))
def test_every_file_of_every_step_is_begun(seed: int, ranks: int) -> None:
    job = Job(ranks=ranks, files=6, every_s=2, restart_every=4)
    actions = story(seed, 40, job)
    assert actions == story(seed, 40, job)
    assert actions == sorted(actions)
    begun = {(a.rank, a.step, a.file) for a in actions}
    own = {(r, s, f) for r, s, f in begun if f < job.file_count}
    assert own == {(r, s, f) for r in range(ranks) for s in range(1, 21) for f in range(job.file_count)}
    hostile = {step for step, manner in manners(seed, 40, job).items() if manner is Manner.HOSTILE}
    assert {(r, s) for r, s, f in begun - own} == hostile
    # A file that grows is complete after four quarters.
    grown = Counter((a.rank, a.step, a.file) for a in actions if a.op is Op.GROW)
    assert set(grown.values()) <= {4}
