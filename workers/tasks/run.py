"""The functions that Dask runs, with packed arguments: `convert`, `publish`, both, `read_back`, `recheck`.

A plan consists of thousands of small objects. Dask would unpickle and pickle them at every hop, but it passes
bytes on as they are.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from numcodecs import LZ4

from workers.errors import DumpIngestError, as_error
from workers.model import StepKey
from workers.store.model import CommitSummary
from workers.tasks import model
from workers.tasks.convert import convert
from workers.tasks.isolate import convert_in_subprocess
from workers.tasks.model import EntryColumns, Receipt, ShardJob, StepPlan
from workers.tasks.publish import publish
from workers.tasks.read_back import ReadBack, ReadBackJob, read_back, recheck

# Plans are repetitive: they shrink to a ninth, in a fiftieth of the time that it takes to convert the step.
_LZ4 = LZ4()
T = TypeVar("T")


def pack_convert(job: ShardJob) -> bytes:
    """Return the argument of `run_convert`: the job without tensor names, which conversion does not need."""
    return pack((replace(job, entries={}), model.payload_columns(job.entries.values())))


def unpack_convert(packed: bytes) -> ShardJob:
    """Return the job that `pack_convert` packed."""
    job: ShardJob
    job, payloads = _unpack(packed)
    return replace(job, entries=dict(zip(job.rows, model.payload_entries(payloads), strict=True)))


def pack_plan(plan: StepPlan) -> bytes:
    """Return the part of the argument of `run_publish` that is known before the jobs are done."""
    return pack(_by_columns(plan))


def pack_publish(packed_plan: bytes, receipts: Sequence[Receipt]) -> bytes:
    """Return the argument of `run_publish`."""
    return pickle.dumps((packed_plan, receipts), protocol=5)


def pack_steps(plans: Sequence[StepPlan]) -> bytes:
    """Return the argument of `run_steps`. The rules, which the plans share, are packed once."""
    return pack([_by_columns(plan) for plan in plans])


def unpack_steps(packed: bytes) -> list[StepPlan]:
    """Return the plans that `pack_steps` packed."""
    return [_with_jobs(plan) for plan in _unpack(packed)]


def pack(value: object) -> bytes:
    """Return values as bytes: for `run_read_back`, a job; for `run_recheck`, a sequence of jobs."""
    return bytes(_LZ4.encode(pickle.dumps(value, protocol=5)))


def _unpack(packed: bytes) -> Any:
    # Whoever reaches a Dask scheduler can run code on its workers, so unpickling adds no danger.
    return pickle.loads(_LZ4.decode(packed))  # noqa: S301


def _by_columns(plan: StepPlan) -> StepPlan:
    jobs = tuple(replace(job, entries={}) for job in plan.jobs)
    return replace(plan, entries=EntryColumns.of(plan.entries), jobs=jobs)


def _with_jobs(plan: StepPlan) -> StepPlan:
    entries = tuple(plan.entries)
    jobs = (replace(job, entries={row: entries[row] for row in job.rows}) for job in plan.jobs)
    return replace(plan, jobs=tuple(jobs))


def run_convert(packed: bytes) -> Receipt:
    """Run `workers.tasks.convert.convert`."""
    return convert(unpack_convert(packed))


def run_convert_isolated(packed: bytes) -> Receipt:
    """Convert in a separate process, because this job has killed a worker."""
    return convert(unpack_convert(packed), convert_in_subprocess)


def run_publish(packed: bytes) -> CommitSummary:
    """Run `workers.tasks.publish.publish`."""
    packed_plan, receipts = pickle.loads(packed)  # noqa: S301 (see `_unpack`)
    plan: StepPlan = _unpack(packed_plan)
    return publish(plan, receipts)


def run_steps(packed: bytes) -> list[CommitSummary | DumpIngestError]:
    """Convert and publish steps one after the other; return the commit or the error of each, in order."""
    return [_run_step(plan, convert) for plan in unpack_steps(packed)]


def run_steps_isolated(packed: bytes) -> list[CommitSummary | DumpIngestError]:
    """Do the same, with each conversion in a separate process, because these steps have killed a worker."""
    return [_run_step(plan, partial(convert, run=convert_in_subprocess)) for plan in unpack_steps(packed)]


def run_read_back(packed: bytes) -> ReadBack:
    """Run `workers.tasks.read_back.read_back`."""
    job: ReadBackJob = _unpack(packed)
    return read_back(job)


def run_recheck(packed: bytes) -> list[tuple[str, ...] | DumpIngestError]:
    """Run `workers.tasks.read_back.recheck` for several jobs; return what each returned or raised."""
    return [_or_error(job.key, partial(recheck, job)) for job in _unpack(packed)]


def _run_step(plan: StepPlan, run: Callable[[ShardJob], Receipt]) -> CommitSummary | DumpIngestError:
    return _or_error(plan.key, lambda: publish(plan, [run(job) for job in plan.jobs]))


def _or_error(key: StepKey, action: Callable[[], T]) -> T | DumpIngestError:
    try:
        return action()
    except Exception as exc:  # noqa: BLE001  (the other steps of the task are not affected)
        return as_error(str(key), exc)
