"""What a commit is about to refer to, and was removed from the store since it was written."""

from __future__ import annotations

from collections.abc import Collection

from workers.errors import SourceChanged
from workers.model import StepKey
from workers.store.objects import ObjectStore
from workers.store.packed import pool


def refuse_without_pool(objects: ObjectStore, key: StepKey, paths: Collection[str]) -> None:
    """Raise SourceChanged if an array is not in the pool any more: gc may have taken it for unused."""
    if not paths:
        return
    prefix = pool.pool_of(key)
    present = objects.sizes(prefix)
    for path in paths:
        below = path[len(prefix) + 1 :]
        if not {f"{below}/{pool.SHARD}", f"{below}/{pool.NODE}"} <= present.keys():
            raise SourceChanged(f"{key}: {path} was removed from the pool meanwhile")


def refuse_without_shards(
    objects: ObjectStore, key: StepKey, fingerprint: str, shards: Collection[str]
) -> None:
    """Raise SourceChanged if shards of a generation are gone.

    Another watcher may have committed the same generation before, and gc removed the step since then.
    """
    if not shards:
        return
    lost = set(shards) - objects.sizes(f"{key.path}/{fingerprint}").keys()
    if lost:
        raise SourceChanged(f"{key}: {min(lost)} was removed from the store meanwhile")
