"""`gc` for Python: a plan, and carrying it out."""

from __future__ import annotations

import threading
import time
from os import PathLike
from typing import TypeAlias

from ingest.reader.catalog import Catalog, open_catalog
from ingest.store_gc.execute import Execution, GcReport
from ingest.store_gc.inventory import take_inventory
from ingest.store_gc.plan import GcPlan, make_plan
from ingest.store_gc.policy import GcPolicy

Store: TypeAlias = Catalog | str | PathLike[str]


def plan_gc(store: Store, policy: GcPolicy | None = None) -> GcPlan:
    """Say what would go from a store; what `dump-ingest gc` prints. Changes nothing.

    Args:
        store: an opened store, a directory or any fsspec URL.
        policy: what is to be kept; default: remains of crashes and previous generations go, after a day.

    Raises:
        UsageError: there is no store.
        StoreError: the store refused.
    """
    policy = policy or GcPolicy()
    wanted = policy.keep_anomalous or policy.tensors_around_anomalies is not None
    return make_plan(take_inventory(_opened(store).objects, anomalies=wanted), policy, time.time())


def apply_gc(store: Store, plan: GcPlan, *, stop: threading.Event | None = None) -> GcReport:
    """Carry out a plan; what `dump-ingest gc --apply` does.

    Each step is looked at again before it goes. What was committed again since, or is being written, is left.

    Raises:
        UsageError: there is no store, the plan is for another one, or the clocks differ.
        StoreError: the store refused; what was done so far is done, and the rest may be done again.
    """
    return Execution(_opened(store).objects, plan).run(stop)


def _opened(store: Store) -> Catalog:
    return store if isinstance(store, Catalog) else open_catalog(store)
