"""What Dask is given to run: `convert` and `publish`, with their arguments packed.

A plan is thousands of small objects. Dask would unpickle and pickle them again at every hop; bytes it only
passes on.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from workers.convert import convert
from workers.model import CommitSummary, Receipt, ShardJob, StepPlan
from workers.publish import publish


def pack_convert(job: ShardJob) -> bytes:
    """Return the argument of `run_convert`."""
    return pickle.dumps(job, protocol=5)


def pack_publish(plan: StepPlan, receipts: Sequence[Receipt]) -> bytes:
    """Return the argument of `run_publish`."""
    return pickle.dumps((plan, receipts), protocol=5)


# Reaching a Dask scheduler is running code on its workers, so unpickling what comes from it adds no danger.


def run_convert(packed: bytes) -> Receipt:
    """Run `workers.convert.convert`."""
    job: ShardJob = pickle.loads(packed)  # noqa: S301
    return convert(job)


def run_publish(packed: bytes) -> CommitSummary:
    """Run `workers.publish.publish`."""
    plan, receipts = pickle.loads(packed)  # noqa: S301
    return publish(plan, receipts)
