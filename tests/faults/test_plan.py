"""The seed alone determines schedule and story, and both contain what they should."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.plan import KINDS, Fault, schedule

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
