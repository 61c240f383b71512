"""What a listing alone shows of damage: objects of commits that are missing, or have another size.

Takes a request for each thousand objects of a rank, and reads none of them. `verify` finds the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ingest.reader.damage import Damage
from workers.model import StepKey
from workers.store import tables
from workers.store.objects import ObjectStore
from workers.store.packed import pool
from workers.store.record import LEAF, CommitRecord

#: Ranks that are listed at once.
_RANKS_AT_ONCE = 4
#: What every generation has, by path in it.
_ALWAYS = frozenset([LEAF, *tables.chunk_keys()])
_SHARD = re.compile(r"(?:tensors|files)/(?:.*/)?c/")


@dataclass(frozen=True, slots=True)
class ExpectedObjects:
    """What a listing has to show of a commit. Small: there is one for each committed step of a dump."""

    fingerprint: str
    shards: int
    nbytes: int
    """Of all shards."""
    pool: tuple[str, ...] = ()
    """The arrays in the pool that it refers to, by path."""

    @classmethod
    def of(cls, record: CommitRecord) -> ExpectedObjects:
        """Return the objects that the record of a commit implies."""
        return cls(record.fingerprint, len(record.stored), sum(record.stored.values()), tuple(record.pool))


def damage_in_listing(objects: ObjectStore, expected: Mapping[StepKey, ExpectedObjects]) -> list[Damage]:
    """Check a listing for commits that lack objects, or have shards of other sizes; one damage for each.

    Memory: about 200 bytes for each object of `_RANKS_AT_ONCE` ranks.

    Raises:
        StoreError: the store refused.
    """
    ranks = sorted({key.rank for key in expected})
    with ThreadPoolExecutor(_RANKS_AT_ONCE, thread_name_prefix="dump-ingest-list") as threads:
        found = threads.map(lambda rank: list(_damage_of_rank(objects, rank, expected)), ranks)
        in_ranks = [damage for damages in found for damage in damages]
        steps = sorted({key.step for key, known in expected.items() if known.pool and key.step is not None})
        found = threads.map(lambda step: list(_damage_of_pool(objects, step, expected)), steps)
        return [*in_ranks, *(damage for damages in found for damage in damages)]


def _damage_of_pool(
    objects: ObjectStore, step: int, expected: Mapping[StepKey, ExpectedObjects]
) -> Iterator[Damage]:
    """Yield a damage for each commit of a step that refers to something that its pool lacks."""
    prefix = f"{pool.POOL}/step_{step}"
    present = {f"{prefix}/{name}" for name, nbytes in objects.sizes(prefix).items() if nbytes}
    for key, known in expected.items():
        if key.step != step:
            continue
        wanted = {f"{path}/{name}" for path in known.pool for name in (pool.SHARD, pool.NODE)}
        if absent := sorted(wanted - present):
            yield Damage(key, "", f"{key.path}/{known.fingerprint}: {absent[0]} is missing or empty")


def _damage_of_rank(
    objects: ObjectStore, rank: int, expected: Mapping[StepKey, ExpectedObjects]
) -> Iterator[Damage]:
    wanted = {
        f"{key.path.partition('/')[2]}/{known.fingerprint}": (key, known)
        for key, known in expected.items()
        if key.rank == rank
    }
    present: dict[str, dict[str, int]] = {prefix: {} for prefix in wanted}
    for name, nbytes in objects.sizes(f"rank_{rank}").items():
        step, _, below = name.partition("/")
        generation, _, path = below.partition("/")
        if f"{step}/{generation}" in wanted and _counts(path, nbytes):
            present[f"{step}/{generation}"][path] = nbytes
    for prefix, (key, known) in wanted.items():
        if problem := _problem(present[prefix], known):
            yield Damage(key, "", f"{key.path}/{known.fingerprint}: {problem}")


def _counts(path: str, nbytes: int) -> bool:
    """Return whether an object of a generation is a shard, or one that every generation has."""
    return _SHARD.match(path) is not None or (path in _ALWAYS and nbytes > 0)


def _problem(present: Mapping[str, int], known: ExpectedObjects) -> str:
    """Return the problem with a generation, given the sizes of its objects; "" if the listing shows none."""
    if not present:
        return "the generation is missing"
    if absent := sorted(_ALWAYS - present.keys()):
        return f"{absent[0]} is missing or empty"
    shards = [nbytes for path, nbytes in present.items() if path not in _ALWAYS]
    if len(shards) != known.shards:
        return f"{len(shards)} of {known.shards} shards are there"
    if sum(shards) != known.nbytes:
        return f"its shards have {sum(shards)} bytes instead of {known.nbytes}"
    return ""
