"""Deleting what is committed, with a client that runs every task at once: no thread of Dask, no cluster."""

import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from distributed import Client

from ingest.committed import Committed
from ingest.completeness import Policy, QuietClock
from ingest.layouts.detect import find_dump
from ingest.retention.policy import KeepPolicy, Kept
from ingest.retention.read_backs import ReadBacks
from ingest.retention.source import SourceKept, SourceRetention
from ingest.rules.load import load_rules
from ingest.service import CommitKept, Happening, Report, Service
from ingest.submit import Limits, Submitter
from ingest.watch import Watcher
from tests.checker import leaves
from tests.fake_client import FakeClient
from tests.npy_files import MadeDump, tensor_name
from workers.model import Grid, StepKey
from workers.store.objects import open_objects, resolve

pytestmark = pytest.mark.timeout(30)


class Run:
    """One process that deletes; another one starts where it ended."""

    def __init__(
        self,
        dump: Path,
        store: Path,
        policy: KeepPolicy | None = None,
        *,
        dry_run: bool = False,
        host: str = "",
        replace_others: bool = False,
        patient: bool = False,
    ) -> None:
        """Everything in the dump has been quiet for a minute."""
        address = resolve(str(store))
        committed = Committed(open_objects(address))
        tree = find_dump(dump)
        self.client = FakeClient(eager=True)
        submitter = Submitter(lambda: cast("Client", self.client), Limits(10**9, max_attempts=2))
        self.found: list[Happening] = []
        self.retention = SourceRetention(
            tree.root,
            address,
            committed,
            host or "here",
            policy or KeepPolicy(),
            ReadBacks(submitter.client, 10**9),
            patient=patient,
            dry_run=dry_run,
        )
        clock = QuietClock(wall=lambda: time.time() + 60)
        self.service = Service(
            Watcher(tree, Policy(quiet_s=10, settle_s=1), Grid(), clock=clock),
            submitter,
            committed,
            address,
            [self.found.append],
            poll_s=0.02,
            host=host or "here",
            rules=load_rules(None).enabled,
            retention=self.retention,
            replace=replace_others,
        )

    def ingest(self) -> Report:
        try:
            return self.service.ingest(threading.Event())
        finally:
            self.retention.close()

    def told(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.found if isinstance(one, kind)]


def files_of(root: Path) -> dict[str, bytes]:
    """Return what is in a tree."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def reasons(report: Report) -> dict[StepKey, Kept]:
    return {one.key: one.reason for one in report.source_kept}


@pytest.fixture
def filled(made: MadeDump) -> MadeDump:
    """Two ranks, four steps of three files, and a run file."""
    for rank in range(2):
        for step in range(4):
            for slot in range(3):
                made.add(
                    np.full(10, float(rank + step + slot), "<f4"),
                    tensor_name(slot=slot),
                    rank=rank,
                    step=step,
                )
    (made.root / "rank_0" / "notes.txt").write_text("x")
    return made


def test_all_but_the_newest_steps_of_each_rank_are_deleted(filled: MadeDump, store: Path) -> None:
    report = Run(filled.root, store).ingest()
    assert {one.key for one in report.deleted} == {StepKey(r, s) for r in range(2) for s in range(3)}
    assert sum(one.files for one in report.deleted) == 18
    assert reasons(report) == {StepKey(0, 3): Kept.NEWEST, StepKey(1, 3): Kept.NEWEST}
    left = {path.relative_to(filled.root).parts[:4] for path in filled.root.rglob("*.npy")}
    assert left == {("rank_0", "Net", "0", "3"), ("rank_1", "Net", "0", "3")}
    assert not list(filled.root.glob("rank_*/Net/0/[012]"))
    assert (filled.root / "rank_0" / "notes.txt").exists()


def test_deleted_steps_make_no_noise_and_nothing_is_done_again(filled: MadeDump, store: Path) -> None:
    Run(filled.root, store).ingest()
    before = [leaf.record for leaf in leaves(store)]
    again = Run(filled.root, store)
    report = again.ingest()
    assert not report.commits
    assert not report.deleted
    assert not again.told(CommitKept)
    assert not again.told(SourceKept)
    assert [leaf.record for leaf in leaves(store)] == before
