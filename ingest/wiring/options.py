"""What a service is to do, from settings."""

from __future__ import annotations

import math
import socket

from ingest.disk.pressure import Pressure, parse_threshold
from ingest.dispatch.submitter import DispatchLimits
from ingest.dump_retention.policy import RetentionPolicy
from ingest.service.build import ServiceOptions
from ingest.settings import Settings
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.wiring.stores import grid_of
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.rules.ready import rules_of

#: How long the loop of a watcher waits for the store, in seconds. What takes longer is left to the workers.
_PATIENCE_S = 10.0


def options_of(settings: Settings, *, retry_forever: bool = False, dry_run: bool = False) -> ServiceOptions:
    """Return the options of a service from its settings.

    Raises:
        UsageError: a rule is wrong.
    """
    completeness = CompletenessPolicy(settings.quiet_s, settings.settle_s)
    deletes = settings.after_commit == "delete"
    return ServiceOptions(
        policy=StepPolicy(completeness, settings.order, replace=settings.replace),
        grid=grid_of(settings),
        limits=DispatchLimits(int(settings.inflight_size)),
        resources=settings.worker_resources,
        host=settings.host or socket.gethostname(),
        rules=rules_of(settings.rules),
        poll_s=settings.poll_s,
        retry_forever=retry_forever,
        # A watcher never takes again what was removed, or it would undo each `gc`.
        take_removed=settings.replace and not retry_forever,
        pressure=Pressure(settings.under_pressure, parse_threshold(settings.pressure_free)),
        continues=frozenset(settings.continues),
        recheck_rate=_recheck_rate(settings, watches=retry_forever),
        retention=RetentionPolicy(settings.keep_last, settings.keep_anomalous) if deletes else None,
        dry_run=dry_run,
        patience_s=min(_PATIENCE_S, settings.store_timeout_s) if retry_forever else settings.store_timeout_s,
        task_timeout_s=settings.task_timeout_s,
        pool=settings.pool,
        sketches=settings.sketches,
        marginals=MarginalScope(settings.marginals),
    )


def _recheck_rate(settings: Settings, *, watches: bool) -> float:
    """Return how many bytes of committed files are read again each second: a run of `ingest` does it once."""
    if watches:
        return float(settings.recheck_rate)
    return math.inf if settings.recheck else 0.0
