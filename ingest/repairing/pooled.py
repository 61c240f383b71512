"""Damaged arrays in the pool: made again if they are what their names say, replaced if they are not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ingest.reader.step import Step
from ingest.repairing.payloads import DamagedShard, Payloads
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore
from workers.store.packed import pool
from workers.store.packed.pool_packer import PackedInPool, PoolPacker, encode, is_named
from workers.store.step import StoredStep


@dataclass(eq=False)
class PooledShards:
    """The shards in the pool that one step refers to."""

    step: Step
    payloads: Payloads
    put: Callable[[str, bytes, str], None]
    """Writes an object, unless this is a dry run: its key, its content, and where it comes from."""

    def mend(self, shard: DamagedShard) -> bool:
        """Write a shard again; return whether it is what the name of its array says.

        Digests of payloads were compared already. They are not cryptographic, and other ranks rely on the
        array, too: a dump that was forged must not get into it.
        """
        pooled = self.step.commit.record.pool[shard.array]
        elements = self.payloads.elements(shard)
        if not is_named(pool.name_in(shard.array), pooled.node, elements):
            return False
        data = encode(self.step.packed_spec(shard.array), elements)
        if len(data) != pooled.nbytes:
            return False  # another version of the compressor
        if self.step.objects.get(shard.path) != data:
            self.put(shard.path, data, self.payloads.origins(shard))
        return True

    def replaced(self) -> dict[str, PackedInPool | None]:
        """Write what is left of arrays that cannot be made again as other arrays in the pool.

        Returns:
            By path of a damaged array: what takes its place; None if nothing of it is left.
        """
        replaced: dict[str, PackedInPool | None] = {}
        for shard in self.payloads.shards:
            if not pool.is_pooled(shard.array):
                continue
            if not self.payloads.is_lost(shard) and self.mend(shard):
                continue
            replaced[shard.array] = None
            if self.payloads.holds_anything(shard):
                spec = self.step.packed_spec(shard.array)
                with PoolPacker(spec, self.step.key, self.step.objects) as packer:
                    for piece in self.payloads.elements(shard):
                        packer.append(memoryview(piece))
                (replaced[shard.array],) = packer.arrays
        return replaced


def steps_referring(objects: ObjectStore, key: StepKey, path: str) -> list[StoredStep]:
    """Return the same step of other ranks, if it refers to an array in the pool."""
    others = []
    for rank in commit.list_ranks(objects):
        with suppress(DamagedStore):
            other = commit.read(objects, StepKey(rank, key.step))
            if rank != key.rank and other is not None and path in other.record.pool:
                others.append(StoredStep(objects, other))
    return others
