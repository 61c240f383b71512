"""`gc` for Python: makes a plan, and carries it out."""

from __future__ import annotations

import threading
import time
from os import PathLike
from typing import TypeAlias

from ingest.reader.catalog import Catalog, open_catalog
from ingest.store_gc.execute import Execution, GcReport
from ingest.store_gc.inventory import take_inventory
from ingest.store_gc.plan import GcPlan
from ingest.store_gc.planner import make_plan
from ingest.store_gc.policy import GcPolicy

Store: TypeAlias = Catalog | str | PathLike[str]


def plan_gc(store: Store, policy: GcPolicy | None = None) -> GcPlan:
    """Plan what `gc` removes from a store, as `dump-ingest gc` prints it. Changes nothing.

    Args:
        store: an opened store, a directory or any fsspec URL.
        policy: what to remove and what to keep. The default removes remains of crashes and previous
            generations after a day.

    Raises:
        UsageError: the store does not exist.
        StoreError: the store refused.
    """
    policy = policy or GcPolicy()
    needs_anomalies = policy.keep_anomalous or policy.tensors_around_anomalies is not None
    inventory = take_inventory(_opened(store).objects, anomalies=needs_anomalies)
    return make_plan(inventory, policy, time.time())


def apply_gc(store: Store, plan: GcPlan, *, stop: threading.Event | None = None) -> GcReport:
    """Carry out a plan, as `dump-ingest gc --apply` does.

    Each step is read again before it goes. A step that was committed again since, or that somebody is
    writing, is left alone.

    Args:
        store: an opened store, a directory or any fsspec URL.
        plan: from `plan_gc`.
        stop: ends the work early when it is set.

    Raises:
        UsageError: the store does not exist, the plan is for another store, or the clocks of this host and
            of the store differ.
        StoreError: the store refused. What was removed stays removed; another call removes the rest.
    """
    return Execution(_opened(store).objects, plan).run(stop)


def _opened(store: Store) -> Catalog:
    return store if isinstance(store, Catalog) else open_catalog(store)
