"""Adding nodes to a committed generation: what follows from it, and was not computed at its commit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from workers.errors import DamagedStore
from workers.store import commit, metadata, tables
from workers.store.announcements import REMOVED, announce, changing
from workers.store.commit import Commit
from workers.store.objects import ObjectStore
from workers.store.record import LEAF, WithoutTensors
from workers.store.table_checksums import checksums_of


def extend(
    objects: ObjectStore,
    committed: Commit,
    nodes: Mapping[str, metadata.Document],
    objects_to_write: Mapping[str, bytes],
) -> bool:
    """Commit a step again with further nodes; return whether it was still as it was when it was read.

    Readers find the step at any moment, with the nodes or without.

    Args:
        objects: the store.
        committed: the step.
        nodes: metadata of the arrays and groups that are added, by path in the generation.
        objects_to_write: their chunks, by path in the generation.

    Raises:
        StoreError: the store refused; the step is as it was.
    """
    prefix, leaf = committed.prefix, f"{committed.key.path}/{LEAF}"
    documents = {f"{prefix}/{path}/{LEAF}": metadata.encode(node) for path, node in nodes.items()}
    objects.put_many({**{f"{prefix}/{path}": data for path, data in objects_to_write.items()}, **documents})
    # As it was written: what a later version has added to it stays.
    record = committed.document["attributes"][metadata.ATTRIBUTE]
    record["summary"]["stored_bytes"] += sum(map(len, objects_to_write.values()))
    record["summary"]["objects"] += len(objects_to_write) + len(nodes)
    record["checksums"] = {**record.get("checksums", {}), **checksums_of(objects_to_write)}
    data = commit.encode_leaf(record, committed.fingerprint, {**committed.nodes, **nodes})
    present = _read_undamaged(objects, committed)
    if present is None or present.leaf != committed.leaf:
        return False
    with changing(objects, committed.key):
        objects.put(leaf, data)
        return _is_whole(objects, commit.parse(data, committed.key))


def _read_undamaged(objects: ObjectStore, committed: Commit) -> Commit | None:
    try:
        return commit.read(objects, committed.key)
    except DamagedStore:
        return None


def _is_whole(objects: ObjectStore, written: Commit) -> bool:
    """Return whether a commit has its objects; withdraw what is wrong in it if `gc` deleted some.

    Between the last look at a commit and the write of another is a window of milliseconds, in which `gc` may
    hide the step, or its tensors, and begin to delete. It hides before it deletes, and so does this.
    """
    sizes = objects.sizes(written.prefix)
    if not set(tables.chunk_keys()) <= sizes.keys():
        announce(objects, written.key, REMOVED)
        objects.delete(f"{written.key.path}/{LEAF}")
        return False
    lost = written.record.stored.keys() - sizes.keys()
    if written.without_tensors is None and any(map(metadata.is_of_tensors, lost)):
        now = datetime.now(UTC).isoformat(timespec="seconds")
        commit.drop_tensors(
            objects, written, WithoutTensors(now, "gc", "they were removed while the step was extended")
        )
    return True
