"""A service that deletes committed source files, with a client that runs each task at once, without Dask."""

import threading
from pathlib import Path
from typing import Any

from ingest.dump_retention.policy import RetentionPolicy
from ingest.service.one_shot import Report, ingest_once
from tests.fake_client import FakeClient
from tests.services import Heard, make_service
from workers.rules.schema import load_rules


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
        """Everything in the dump has been quiet for a minute."""
        self.client = client or FakeClient(eager=True)
        self.events = Heard()
        self.service = make_service(
            dump,
            store,
            observers=[self.events.append],
            client=self.client,
            host="here",
            rules=load_rules(None).enabled,
            retention=policy or RetentionPolicy(),
            dry_run=dry_run,
        )

    def ingest(self) -> Report:
        """Run to the end."""
        assert self.service.retention is not None
        try:
            return ingest_once(self.service, threading.Event())
        finally:
            self.service.retention.close()

    def told(self, kind: type[Any]) -> list[Any]:
        """Return everything of one kind that was reported."""
        return self.events.of(kind)
