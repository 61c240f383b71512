"""How full the disk of the dump is."""

from pathlib import Path

from ingest.disk.pressure import DiskSeen, Pressure, Threshold
from ingest.service.disk_watch import DiskWatch
from ingest.steps.decide import StepPolicy
from tests.services import Heard

ALWAYS = Threshold(nbytes=2**62)


def test_a_disk_that_is_full_changes_the_policy_until_it_has_room(tmp_path: Path) -> None:
    heard, policy = Heard(), StepPolicy()
    watch = DiskWatch(tmp_path, Pressure("newest", ALWAYS), heard.append)
    assert watch.apply_to(policy) == policy
    watch.measure()
    assert watch.apply_to(policy).order == "newest"
    assert [seen.under_pressure for seen in heard.of(DiskSeen)] == [True]
    watch.pressure = Pressure("newest", Threshold())
    watch.measure()
    assert watch.apply_to(policy) == policy


def test_a_dump_that_is_gone_for_a_moment_leaves_what_was_seen_last(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, Pressure("newest", ALWAYS), Heard().append)
    watch.measure()
    watch.root = tmp_path / "unmounted"
    watch.measure()
    assert watch.apply_to(StepPolicy()).order == "newest"


def test_whoever_does_not_care_is_not_told(tmp_path: Path) -> None:
    heard = Heard()
    DiskWatch(tmp_path, None, heard.append).measure()
    assert heard == []
