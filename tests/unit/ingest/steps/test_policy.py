"""What a full disk makes of the policy."""

import pytest

from ingest.disk.pressure import DiskSeen, Policy
from ingest.disk.space import DiskSpace
from ingest.steps.decide import StepPolicy


def disk(policy: Policy, *, full: bool) -> DiskSeen:
    return DiskSeen(DiskSpace(5, 100, 0, 0), policy, under_pressure=full, full_in_s=None)


@pytest.mark.parametrize(
    ("policy", "full", "order", "leaves_out"),
    [
        ("keep", True, "oldest", False),
        ("newest", True, "newest", False),
        ("newest", False, "oldest", False),
        ("statistics", True, "oldest", True),
        ("statistics", False, "oldest", False),
    ],
)
def test_a_full_disk_changes_what_its_setting_says(
    policy: Policy, full: bool, order: str, leaves_out: bool
) -> None:
    under = StepPolicy(replace=True).under(disk(policy, full=full))
    assert (under.order, bool(under.leave_out_tensors), under.replace) == (order, leaves_out, True)


def test_who_wants_the_newest_first_gets_them_first_with_room_too() -> None:
    assert StepPolicy(order="newest").under(disk("keep", full=False)).order == "newest"
