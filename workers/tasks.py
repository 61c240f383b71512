"""What Dask is given to run, with its arguments packed: `convert`, `publish`, both for steps, or `read_back`.

A plan is thousands of small objects. Dask would unpickle and pickle them again at every hop; bytes it only
passes on.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

from workers.convert import convert
from workers.errors import DumpIngestError, WorkerDied
from workers.isolate import convert_apart
from workers.model import CommitSummary, Receipt, ShardJob, StepPlan
from workers.publish import publish
from workers.read_back import ReadBack, ReadBackJob, read_back


def pack_convert(job: ShardJob) -> bytes:
    """Return the argument of `run_convert`."""
    return pickle.dumps(job, protocol=5)


def pack_plan(plan: StepPlan) -> bytes:
    """Return the part of the argument of `run_publish` that is known before the jobs are done."""
    return pickle.dumps(plan, protocol=5)


def pack_publish(packed_plan: bytes, receipts: Sequence[Receipt]) -> bytes:
    """Return the argument of `run_publish`."""
    return pickle.dumps((packed_plan, receipts), protocol=5)


def pack_steps(plans: Sequence[StepPlan]) -> bytes:
    """Return the argument of `run_steps`."""
    return pickle.dumps(plans, protocol=5)


def pack_read_back(job: ReadBackJob) -> bytes:
    """Return the argument of `run_read_back`."""
    return pickle.dumps(job, protocol=5)


# Reaching a Dask scheduler is running code on its workers, so unpickling what comes from it adds no danger.


def run_convert(packed: bytes) -> Receipt:
    """Run `workers.convert.convert`."""
    job: ShardJob = pickle.loads(packed)  # noqa: S301
    return convert(job)


def run_convert_apart(packed: bytes) -> Receipt:
    """Run `workers.isolate.convert_apart`: after a worker died of this job."""
    job: ShardJob = pickle.loads(packed)  # noqa: S301
    return _convert_apart(job)


def _convert_apart(job: ShardJob) -> Receipt:
    return convert(job, convert_apart)


def run_publish(packed: bytes) -> CommitSummary:
    """Run `workers.publish.publish`."""
    packed_plan, receipts = pickle.loads(packed)  # noqa: S301
    return publish(pickle.loads(packed_plan), receipts)  # noqa: S301


def run_steps(packed: bytes) -> list[CommitSummary | DumpIngestError]:
    """Convert and publish steps one after the other; return for each what came of it, in their order."""
    plans: Sequence[StepPlan] = pickle.loads(packed)  # noqa: S301
    return [_run_step(plan, convert) for plan in plans]


def run_steps_apart(packed: bytes) -> list[CommitSummary | DumpIngestError]:
    """Do the same, with each conversion in a process of its own: after a worker died of these steps."""
    plans: Sequence[StepPlan] = pickle.loads(packed)  # noqa: S301
    return [_run_step(plan, _convert_apart) for plan in plans]


def run_read_back(packed: bytes) -> ReadBack:
    """Run `workers.read_back.read_back`."""
    job: ReadBackJob = pickle.loads(packed)  # noqa: S301
    return read_back(job)


def _run_step(plan: StepPlan, run: Callable[[ShardJob], Receipt]) -> CommitSummary | DumpIngestError:
    try:
        return publish(plan, [run(job) for job in plan.jobs])
    except Exception as exc:  # noqa: BLE001  (the other steps of the task have nothing to do with it)
        return as_error(str(plan.key), exc)


def as_error(what: str, exc: Exception) -> DumpIngestError:
    """Return an exception as an error of this project; `what` names the step."""
    if isinstance(exc, DumpIngestError):
        return exc
    if isinstance(exc, MemoryError):
        return WorkerDied(f"{what}: a worker ran out of memory")
    return DumpIngestError(f"{what}: {type(exc).__name__}: {exc}"[:500])
