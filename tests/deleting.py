"""A service that deletes committed source files, with a client that runs each task at once, without Dask."""

import threading
import time
from pathlib import Path
from typing import Any, cast

from distributed import Client

from ingest.dispatch.submitter import DispatchLimits, Submitter
from ingest.dump_retention.policy import RetentionPolicy
from ingest.dump_retention.read_backs import ReadBacks
from ingest.dump_retention.retention import SourceRetention
from ingest.layouts.detect import find_dump
from ingest.service.report import Report
from ingest.service.service import Service
from ingest.steps.committed import Committed
from ingest.watching.completeness import CompletenessPolicy, QuietClock
from ingest.watching.watcher import Watcher
from tests.fake_client import FakeClient
from workers.events import Event
from workers.rules.load import load_rules
from workers.store.model import Grid
from workers.store.opening import open_objects, resolve


class Run:
    """One watching process that deletes source files. A second `Run` plays its restart."""

    def __init__(
        self,
        dump: Path,
        store: Path,
        policy: RetentionPolicy | None = None,
        *,
        dry_run: bool = False,
        client: FakeClient | None = None,
    ) -> None:
        """Set up the service; by its clock, no file has changed for a minute."""
        address = resolve(str(store))
        committed = Committed(open_objects(address))
        tree = find_dump(dump)
        self.client = client or FakeClient(eager=True)
        submitter = Submitter(lambda: cast("Client", self.client), DispatchLimits(10**9, max_attempts=2))
        self.events: list[Event] = []
        self.retention = SourceRetention(
            tree.root,
            address,
            committed,
            "here",
            policy or RetentionPolicy(),
            ReadBacks(submitter.client, 10**9),
            dry_run=dry_run,
        )
        clock = QuietClock(wall=lambda: time.time() + 60)
        self.service = Service(
            Watcher(tree, CompletenessPolicy(quiet_s=10, settle_s=1), Grid(), clock=clock),
            submitter,
            committed,
            address,
            [self.events.append],
            poll_s=0.02,
            host="here",
            rules=load_rules(None).enabled,
            retention=self.retention,
        )

    def ingest(self) -> Report:
        """Run the service until the whole dump is committed and deleted."""
        try:
            return self.service.ingest(threading.Event())
        finally:
            self.retention.close()

    def told(self, kind: type[Any]) -> list[Any]:
        """Return the events of one type that the service has reported."""
        return [event for event in self.events if isinstance(event, kind)]
