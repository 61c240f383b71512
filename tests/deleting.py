"""A service that deletes what is committed, with a client that runs every task at once: no cluster."""

import threading
import time
from pathlib import Path
from typing import Any, cast

from distributed import Client

from ingest.dispatch.submitter import Limits, Submitter
from ingest.dump_retention.policy import KeepPolicy
from ingest.dump_retention.read_backs import ReadBacks
from ingest.dump_retention.retention import SourceRetention
from ingest.layouts.detect import find_dump
from ingest.reporting.report import Report
from ingest.steps.committed import Committed
from ingest.steps.events import Happening
from ingest.steps.service import Service
from ingest.watching.completeness import Policy, QuietClock
from ingest.watching.watcher import Watcher
from tests.fake_client import FakeClient
from workers.model import Grid
from workers.rules.load import load_rules
from workers.store.objects import open_objects, resolve


class Run:
    """One process that deletes; another one starts where it ended."""

    def __init__(
        self,
        dump: Path,
        store: Path,
        policy: KeepPolicy | None = None,
        *,
        dry_run: bool = False,
        client: FakeClient | None = None,
    ) -> None:
        """Everything in the dump has been quiet for a minute."""
        address = resolve(str(store))
        committed = Committed(open_objects(address))
        tree = find_dump(dump)
        self.client = client or FakeClient(eager=True)
        submitter = Submitter(lambda: cast("Client", self.client), Limits(10**9, max_attempts=2))
        self.found: list[Happening] = []
        self.retention = SourceRetention(
            tree.root,
            address,
            committed,
            "here",
            policy or KeepPolicy(),
            ReadBacks(submitter.client, 10**9),
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
            host="here",
            rules=load_rules(None).enabled,
            retention=self.retention,
        )

    def ingest(self) -> Report:
        """Run to the end."""
        try:
            return self.service.ingest(threading.Event())
        finally:
            self.retention.close()

    def told(self, kind: type[Any]) -> list[Any]:
        """Return everything of one kind that was told."""
        return [one for one in self.found if isinstance(one, kind)]
