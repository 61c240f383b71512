"""The payloads of one step: shards made again, or a generation that names what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.repairing.commits import commit_from_objects
from ingest.repairing.loss import LOST, commit_rest, name_of_rest
from ingest.repairing.payloads import DamagedShard, Payloads, reasons_of
from ingest.repairing.pooled import PooledShards, steps_referring
from ingest.repairing.result import Lost
from ingest.repairing.sources import Copies
from ingest.repairing.work import StepWork
from workers.errors import DamagedStore
from workers.store.commit import Commit
from workers.store.packed import pool
from workers.store.step import StoredStep


def mend_payloads(work: StepWork, step: Step, damages: Sequence[Damage]) -> None:
    """Write damaged shards again. What is found nowhere is lost: named, and left out if that is accepted."""
    payloads = _payloads_of(work, step, damages)
    pooled = PooledShards(step, payloads, work.put)
    stored, odd = step.commit.record.stored, False
    for shard in payloads.shards:
        if payloads.is_lost(shard):
            continue
        if pool.is_pooled(shard.array):
            odd |= not pooled.mend(shard)
            continue
        data, path = payloads.encode(shard), f"{step.commit.prefix}/{shard.path}"
        if len(data) != stored.get(shard.path):
            odd = True  # another version of the compressor: the commit has another size
        elif work.objects.get(path) != data:
            work.put(path, data, payloads.origins(shard))
    reasons = reasons_of(step, damages, payloads.lost)
    sources = step.tables.label("source")
    work.repair.lost += [Lost(str(sources[row]), reason) for row, reason in reasons.items()]
    if odd or (reasons and work.policy.accept_loss):
        lost = {row: f"{LOST}: {reason}" for row, reason in reasons.items()}
        if not reasons or work.policy.accept_loss:
            _commit_rest(work, step, lost, payloads)


def _payloads_of(work: StepWork, step: Step, damages: Sequence[Damage]) -> Payloads:
    roots = [dump.root for dump in work.dumps.of(step.commit.record)]
    payloads = Payloads(
        step, damages, roots, Copies(work.catalog), _earlier(work, step.commit), partial(_sharers, work)
    )
    payloads.find_sources()
    return payloads


def _sharers(work: StepWork, path: str) -> list[tuple[StoredStep, list[Path]]]:
    """Return the steps of other ranks that refer to an array in the pool, and the dumps of each."""
    others = steps_referring(work.objects, work.key, path)
    return [(other, [dump.root for dump in work.dumps.of(other.commit.record)]) for other in others]


def _earlier(work: StepWork, committed: Commit) -> list[StoredStep]:
    """Return the earlier generations that can still be read."""
    earlier: list[StoredStep] = []
    for name in reversed(committed.record.previous):
        try:
            earlier.append(StoredStep(work.objects, commit_from_objects(work.objects, work.key, name)))
        except DamagedStore:
            continue
    return earlier


def _commit_rest(work: StepWork, step: Step, lost: dict[int, str], payloads: Payloads) -> None:
    work.repair.generation = name_of_rest(step.commit.fingerprint, lost)
    if not work.policy.apply:
        return
    shards = {shard.path: shard for shard in payloads.shards}
    made_in_pool = PooledShards(step, payloads, work.put).replaced()
    commit_rest(
        step, lost, lambda path: _shard_of(work, step, path, shards.get(path), payloads), made_in_pool
    )


def _shard_of(
    work: StepWork, step: Step, path: str, damaged: DamagedShard | None, payloads: Payloads
) -> bytes | None:
    if damaged is None:
        return work.objects.get(f"{step.commit.prefix}/{path}")
    return payloads.encode(damaged) if payloads.holds_anything(damaged) else None
