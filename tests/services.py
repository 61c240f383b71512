"""A service over a made dump, with a client that runs every task at once: no thread, no cluster."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from distributed import Client

from ingest.dispatch.submitter import DispatchLimits
from ingest.layouts.detect import find_dump
from ingest.service.offering import ServiceOptions
from ingest.service.one_shot import Report, ingest_once
from ingest.service.service import Service
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.watcher import QuietClock
from tests.fake_client import FakeClient
from tests.npy_files import MadeDump
from workers.events import Event, Observer
from workers.model import StepKey
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve


def make_service(
    dump: Path,
    store: Path | ObjectStore,
    *,
    observers: Sequence[Observer] = (),
    client: FakeClient | None = None,
    **options: Any,
) -> Service:
    """Return a service that has done nothing yet; to it, all of the dump has been quiet for a minute.

    `options` are those of `ServiceOptions`.
    """
    chosen: dict[str, Any] = {
        "policy": StepPolicy(CompletenessPolicy(quiet_s=10, settle_s=1)),
        "limits": DispatchLimits(10**9, max_attempts=2, first_pause_s=0.01),
        "quiet_clock": QuietClock(files=lambda _: time.time() + 60),
        "poll_s": 0.02,
    } | options
    client = client or FakeClient(eager=True)
    objects = open_objects(resolve(str(store))) if isinstance(store, str | Path) else store
    return Service(
        find_dump(dump),
        objects,
        lambda: cast("Client", client),
        ServiceOptions(**chosen),
        observers=observers,
    )


class Heard(list[Event]):
    """An observer that remembers."""

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self if isinstance(event, kind)]

    def keys(self, kind: type[Any]) -> list[StepKey]:
        """Return the steps of the outcomes of one kind."""
        return [event.plan.key for event in self.of(kind)]


def observed_service(made: MadeDump, store: Path, **options: Any) -> tuple[Service, Heard]:
    """Return a service, and what it reports."""
    heard = Heard()
    return make_service(made.root, store, observers=[heard.append], **options), heard


def ingest(made: MadeDump, store: Path, **options: Any) -> Report:
    """Take everything of a dump into a store."""
    return ingest_once(make_service(made.root, store, **options), threading.Event())
