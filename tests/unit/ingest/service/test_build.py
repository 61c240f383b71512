"""A service is one table and the parts around it."""

from pathlib import Path

from ingest.dump_retention.policy import RetentionPolicy
from tests.npy_files import MadeDump
from tests.services import make_service


def test_all_parts_share_one_table(made: MadeDump, store: Path) -> None:
    made.directory()
    service = make_service(made.root, store, retention=RetentionPolicy())
    assert service.retention is not None
    tables = [
        service.watcher.table,
        service.committed.table,
        service.submitter.table,
        service.retention.judge.table,
    ]
    assert all(table is service.table for table in tables)
    assert service.policy.deletes
    assert not make_service(made.root, store).policy.deletes


def test_a_service_that_was_put_together_has_not_looked_yet(made: MadeDump, store: Path) -> None:
    made.directory()
    service = make_service(made.root, store)
    assert service.dump_state is None
    assert (len(service.table), service.submitter.offered_steps, service.is_deleting) == (0, 0, False)
    assert not store.exists()
