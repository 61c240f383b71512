"""How full the disk of the dump is."""

from dataclasses import replace
from pathlib import Path

from ingest.disk.pressure import DiskSeen, Pressure, Threshold
from tests.npy_files import MadeDump
from tests.services import observed_service

ALWAYS = Threshold(nbytes=2**62)


def test_a_disk_that_is_full_changes_the_policy_until_it_has_room(made: MadeDump, store: Path) -> None:
    made.directory()
    service, heard = observed_service(made, store, pressure=Pressure("newest", ALWAYS))
    orders = [service.current_policy.order]
    service.measure_disk()
    orders.append(service.current_policy.order)
    assert [seen.under_pressure for seen in heard.of(DiskSeen)] == [True]
    made.root.rename(made.root.with_name("unmounted"))
    service.measure_disk()  # what was seen last stands
    orders.append(service.current_policy.order)
    made.root.with_name("unmounted").rename(made.root)
    service.options = replace(service.options, pressure=Pressure("newest", Threshold()))
    service.measure_disk()
    assert [*orders, service.current_policy.order] == ["oldest", "newest", "newest", "oldest"]
