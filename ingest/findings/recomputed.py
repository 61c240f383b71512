"""The kind of rule that recomputes a sample of operators: `audit`, at a small part of its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ingest.findings.replicas import chooser, fulfilling
from ingest.identities.audit import StepAudit
from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import take_snapshot
from ingest.reader.tensor import Tensor
from workers.errors import UsageError
from workers.rules.values import Rule
from workers.store.model import Finding


def recomputed(rule: Rule, catalog: Catalog, step: int) -> Iterator[Finding]:
    """Yield outputs of a step that do not follow from their inputs, of operators at random on one rank.

    Each step, it is the turn of another rank. Their bytes are about the share of the rank that the rule says.

    Raises:
        DamagedStore: no rank of the step can be read.
        UsageError: the condition of the rule cannot be evaluated, or the step is gone.
    """
    snapshot = take_snapshot(catalog, step=step, include_partial=True)
    opened = {rank: each for rank, each in snapshot.of_step(step).items() if rule.selector.has_rank(rank)}
    if not opened:
        return
    rank = sorted(opened)[step % len(opened)]
    fulfil = fulfilling(catalog, step, [rule.where])[rule.where] if rule.where else None
    if isinstance(fulfil, UsageError):
        raise fulfil
    for checked in StepAudit(opened[rank]).sampled(rule["share"], np.random.default_rng(step)):
        shape, tensor = checked.outcome.difference, Tensor(opened[rank], checked.row)
        if checked.outcome.status != "fails" or shape is None or not chooser(rule.selector)(tensor):
            continue
        if fulfil is not None and (tensor.graph, tensor.name) not in fulfil:
            continue
        times, (cause, level) = checked.outcome.times, checked.outcome.named
        size = f", up to {times:.3g} times the limit of rounding" if math.isfinite(times) else ""
        yield Finding(
            rule=rule.name,
            severity=rule.severity,
            rank=rank,
            step=step,
            row=checked.row,
            graph=tensor.graph,
            name=tensor.name,
            value=times if math.isfinite(times) else math.nan,
            threshold=1.0,
            reason=f"does not follow from its inputs by {checked.kind}: {shape}{size}",
            cause=cause,
            level=level,
            since=step,
        )
