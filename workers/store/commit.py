"""The commit: how a step becomes visible, and what its record says.

Everything of a generation is written first; the `zarr.json` of the leaf goes last, in one PUT, and carries
the record and the metadata of every node below it. A leaf without that object does not exist for readers.

What follows from a committed generation, and was not computed at its commit, is added by committing it again
with more nodes (`extend`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from workers.errors import DamagedStore, SourceChanged
from workers.model import StepKey
from workers.store import metadata, tables
from workers.store.announcements import REMOVED, announce, changing
from workers.store.model import CommitSummary, Origin, rank_named, step_named
from workers.store.objects import ObjectStore
from workers.store.packed import pool
from workers.store.record import (
    LEAF,
    CommitRecord,
    CompactLeaf,
    Nodes,
    StepContents,
    WithoutTensors,
    decode_record,
    format_version_of,
    new_record,
    not_ours,
    root_format,
    with_checksum,
)
from workers.store.table_codec import checksums_of

ROOT = "zarr.json"
#: Commits that are requested before the first of them is looked at.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Commit:
    """What a reader knows about a committed step before it reads any table."""

    key: StepKey
    fingerprint: str
    summary: CommitSummary
    record: CommitRecord
    nodes: Mapping[str, metadata.Document]
    """Metadata of every node of the generation, by its path in it."""
    leaf: CompactLeaf | None
    """The `zarr.json` that all of this was read from; None in an abridged commit."""

    @property
    def document(self) -> metadata.Document:
        """The `zarr.json` as it was written: what a later version has added to it is in it, too.

        Raises:
            ValueError: the commit is abridged.
        """
        document: metadata.Document = json.loads(self.data)
        return document

    @property
    def data(self) -> bytes:
        """The content of the `zarr.json`; for errors, see `document`."""
        if self.leaf is None:
            raise ValueError(f"{self.key}: an abridged commit has no zarr.json")
        return self.leaf.data

    @property
    def without_tensors(self) -> WithoutTensors | None:
        """Why the arrays `tensors/*` are missing; None if they exist."""
        return self.record.without_tensors

    @property
    def prefix(self) -> str:
        """Where the generation is, relative to the store."""
        return f"{self.key.path}/{self.fingerprint}"

    @property
    def packed_nodes(self) -> dict[str, metadata.Document]:
        """Metadata by path of all that the label `array` may name: in the generation, and in the pool."""
        return {**self.nodes, **{path: pooled.node for path, pooled in self.record.pool.items()}}

    def place_of(self, path: str) -> str:
        """Return where the array is that the label `array` names, relative to the store."""
        return path if pool.is_pooled(path) else f"{self.prefix}/{path}"

    def abridged(self, path: str) -> Commit:
        """Return a copy with the metadata of one array only: small enough to go with each task."""
        nodes = {path: self.nodes[path]} if path in self.nodes else {}
        pooled = {path: self.record.pool[path]} if path in self.record.pool else {}
        record = msgspec.structs.replace(self.record.abridged(), pool=pooled)
        return replace(self, record=record, nodes=nodes, leaf=None)


def ensure_root(objects: ObjectStore) -> None:
    """Make a store if there is none.

    Raises:
        StoreFormatError: the store was written by a newer version, or is something else.
        StoreError: it cannot be reached, or not written.
    """
    _ensure_root(objects, objects.get(ROOT))


def _ensure_root(objects: ObjectStore, data: bytes | None) -> None:
    if data is None:
        objects.put(ROOT, root_document())
    else:
        _root_version(objects, data)


def _root_version(objects: ObjectStore, data: bytes) -> int:
    """Return the format version that a root states; if it states none, tell damage from something else."""
    try:
        return root_format(data, objects.address.url)
    except DamagedStore as exc:
        if holds_commits(objects):
            raise
        raise not_ours(objects.address.url) from exc


def holds_commits(objects: ObjectStore) -> bool:
    """Return whether any step is committed, without reading the root. Takes a few requests."""
    for rank in list_ranks(objects):
        keys = list_keys(objects, [rank])
        for start in range(0, len(keys), _AT_ONCE):
            if objects.get_many([f"{key.path}/{LEAF}" for key in keys[start : start + _AT_ONCE]]):
                return True
    return False


def root_document() -> bytes:
    """Return the `zarr.json` of the root of a store."""
    root = metadata.group({metadata.ATTRIBUTE: {"format_version": metadata.FORMAT_VERSION}})
    return metadata.encode(root)


def rank_document(rank: int) -> bytes:
    """Return the `zarr.json` of the group of a rank."""
    return metadata.encode(metadata.group({"rank": rank}))


def read_root(objects: ObjectStore) -> int | None:
    """Return the format version of the store, or None before the store exists.

    Raises:
        StoreFormatError: it was written by a newer version, or is something else.
        DamagedStore: it is damaged, although there are commits.
    """
    data = objects.get(ROOT)
    return None if data is None else _root_version(objects, data)


def write(
    objects: ObjectStore,
    summary: CommitSummary,
    *,
    origin: Origin,
    nodes: Mapping[str, metadata.Document],
    objects_to_write: Mapping[str, bytes],
    contents: StepContents,
    without_tensors: WithoutTensors | None = None,
    replaces: str | None = None,
    now: datetime | None = None,
) -> None:
    """Make a step visible. Safe to call again; the same generation is then written again as it was.

    A task can be stopped for any time in between, and others commit meanwhile. So the last thing before the
    commit is to look at the present one. Between this look and the write is a window of milliseconds that
    object stores offer no common way to close; watchers read commits again, see `Committed.recheck`.

    Args:
        objects: the store.
        summary: the totals of the step.
        origin: where it comes from.
        nodes: metadata of every array and group of the generation, by path in it.
        objects_to_write: chunks of the generation that no task has written, by path in it.
        contents: what else the record lists.
        without_tensors: why no payloads of tensors are among the nodes, if so.
        replaces: the only other generation whose place this may take, "" for none; None for any.
        now: the time of the commit.

    Raises:
        SourceChanged: another generation was committed meanwhile, or tensors of this one were removed, also
            from the pool.
        StoreError: the store refused.
    """
    key, fingerprint, checksums = summary.key, summary.fingerprint, contents.checksums
    _write_generation(objects, summary, nodes, objects_to_write)
    refuse_without_pool(objects, key, contents.pool)
    refuse_without_shards(objects, key, fingerprint, contents.stored)
    present_data = objects.get(f"{key.path}/{LEAF}")
    present = None if present_data is None else _undamaged(present_data, key)
    if present is not None:
        _refuse_if_late(present, fingerprint, replaces, without_tensors)
        if present.fingerprint == fingerprint and present.record.checksums != checksums:
            # Another processor sums up in another order: these tables must be those that the commit lists.
            _write_generation(objects, summary, nodes, objects_to_write)
    history = [] if present is None else [*present.record.previous, present.fingerprint]
    record = new_record(
        summary,
        origin=origin,
        contents=contents,
        without_tensors=without_tensors,
        previous=history,
        now=now,
    )
    data = encode_leaf(record.to_dict(), fingerprint, nodes)
    if present_data is None:
        objects.put(f"{key.path}/{LEAF}", data)
    else:
        replace_leaf(objects, key, data, fingerprint, history)


def replace_leaf(
    objects: ObjectStore, key: StepKey, data: bytes, fingerprint: str, history: Collection[str]
) -> None:
    """Write a commit in the place of another one. That is announced first: see `workers.store.announcements`.

    Args:
        objects: the store.
        key: the step.
        data: the new `zarr.json`.
        fingerprint: the generation in it.
        history: the present generation and those that it has replaced; none if the commit is damaged.
    """
    leaf = f"{key.path}/{LEAF}"
    if history and fingerprint not in history:
        announce(objects, key, fingerprint)
        objects.put(leaf, data)
        return
    with changing(objects, key):
        objects.put(leaf, data)


def _write_generation(
    objects: ObjectStore,
    summary: CommitSummary,
    nodes: Mapping[str, metadata.Document],
    objects_to_write: Mapping[str, bytes],
) -> None:
    """Write the root and the group of the rank, if they are missing, and all of the generation."""
    rank = f"rank_{summary.key.rank}/zarr.json"
    present = objects.get_many([ROOT, rank])  # in one round trip
    _ensure_root(objects, present.get(ROOT))
    if rank not in present:
        objects.put(rank, rank_document(summary.key.rank))
    prefix = f"{summary.key.path}/{summary.fingerprint}"
    documents = {f"{prefix}/{path}/zarr.json": metadata.encode(node) for path, node in nodes.items() if path}
    documents[f"{prefix}/zarr.json"] = metadata.encode(nodes[""])
    objects.put_many({**{f"{prefix}/{path}": data for path, data in objects_to_write.items()}, **documents})


def encode_leaf(record: Mapping[str, Any], fingerprint: str, nodes: Mapping[str, metadata.Document]) -> bytes:
    """Return the `zarr.json` of a step, which is its commit: the record, and the metadata of all nodes."""
    below = {(f"{fingerprint}/{path}" if path else fingerprint): node for path, node in nodes.items()}
    return with_checksum(metadata.encode(metadata.leaf(record, below)))


def drop_tensors(objects: ObjectStore, commit: Commit, without: WithoutTensors) -> Commit:
    """Commit a step again without the payloads of its tensors. Deletes nothing: that is for the caller.

    From here on no reader looks for them, so no plain Zarr reader takes a missing chunk for zeros.
    """
    nodes = {path: node for path, node in commit.nodes.items() if not metadata.is_of_tensors(path)}
    stored, totals = commit.record.stored, commit.record.summary
    dropped = {path: size for path, size in stored.items() if metadata.is_of_tensors(path)}
    # As it was written: what a later version has added to it stays.
    record = commit.document["attributes"][metadata.ATTRIBUTE]
    pooled = record.pop("pool", {})
    # The rows go on naming the pool, which a version without it takes for damage.
    has_views = record["format_version"] >= metadata.VIEWS_FORMAT_VERSION
    record["format_version"] = format_version_of(without, has_views=has_views, has_pool=bool(pooled))
    record["without_tensors"] = asdict(without)
    record["summary"]["stored_bytes"] = max(
        totals.stored_bytes - sum(dropped.values()) - sum(array["nbytes"] for array in pooled.values()), 0
    )
    objects_left = totals.objects - len(dropped) - len(commit.nodes) + len(nodes) - 2 * len(pooled)
    record["summary"]["objects"] = max(objects_left, 0)
    record["stored"] = {path: size for path, size in stored.items() if path not in dropped}
    data = encode_leaf(record, commit.fingerprint, nodes)
    replace_leaf(objects, commit.key, data, commit.fingerprint, commit.record.generations)
    return parse(data, commit.key)


def _undamaged(data: bytes, key: StepKey) -> Commit | None:
    """Return the present commit; None if it is damaged, because then a new one takes its place."""
    try:
        return parse(data, key)
    except DamagedStore:
        return None


def _refuse_if_late(
    present: Commit, fingerprint: str, replaces: str | None, without_tensors: WithoutTensors | None
) -> None:
    """Raise SourceChanged if the present commit is not one that the plan knew."""
    if present.fingerprint == fingerprint:
        removed = present.without_tensors
        if removed is not None and removed.by == "gc" and without_tensors is None:
            raise SourceChanged(f"{present.key}: its tensors were removed from the store meanwhile")
    elif replaces is not None and present.fingerprint != replaces:
        raise SourceChanged(f"{present.key}: another generation of it was committed since it was planned")


def read(objects: ObjectStore, key: StepKey) -> Commit | None:
    """Return the commit of a step, or None if the step is not in the store."""
    data = objects.get(f"{key.path}/{LEAF}")
    return None if data is None else parse(data, key)


def read_many(
    objects: ObjectStore, keys: Sequence[StepKey]
) -> tuple[dict[StepKey, Commit], dict[StepKey, str]]:
    """Return the commits of the steps that are in the store, and what is wrong with damaged commits.

    Both in the order of `keys`; at most 256 are requested at once.
    """
    commits: dict[StepKey, Commit] = {}
    damaged: dict[StepKey, str] = {}
    for key, data in _leaves(objects, keys):
        try:
            commits[key] = parse(data, key)
        except DamagedStore as exc:
            damaged[key] = exc.message
    return commits, damaged


def read_records(objects: ObjectStore, keys: Sequence[StepKey]) -> dict[StepKey, CommitRecord]:
    """Return the commit records of the steps that are in the store.

    Leaves out damaged commits. Takes half the time of `read_many`.
    """
    records: dict[StepKey, CommitRecord] = {}
    for key, data in _leaves(objects, keys):
        with suppress(DamagedStore):
            records[key] = decode_record(data, key)
    return records


def _leaves(objects: ObjectStore, keys: Sequence[StepKey]) -> Iterator[tuple[StepKey, bytes]]:
    for start in range(0, len(keys), _AT_ONCE):
        names = {f"{key.path}/{LEAF}": key for key in keys[start : start + _AT_ONCE]}
        for name, data in objects.get_many(list(names)).items():
            yield names[name], data


def list_ranks(objects: ObjectStore) -> list[int]:
    """Return the ranks of which the store has anything at all, in order."""
    ranks = map(rank_named, objects.children())
    return sorted(rank for rank in ranks if rank is not None)


def list_steps(objects: ObjectStore, rank: int) -> set[int]:
    """Return the steps of a rank of which the store has anything at all, committed or not."""
    steps = map(step_named, objects.children(f"rank_{rank}"))
    return {step for step in steps if step is not None}


def list_keys(objects: ObjectStore, ranks: Iterable[int] | None = None) -> list[StepKey]:
    """Return the steps of which the store has anything, committed or not, in order; run files, too."""
    keys = []
    for rank in list_ranks(objects) if ranks is None else ranks:
        for name in objects.children(f"rank_{rank}"):
            step = step_named(name)
            if step is not None or name == "run":
                keys.append(StepKey(rank, step))
    return sorted(keys, key=lambda key: key.order)


def parse(data: bytes, key: StepKey) -> Commit:
    """Read the `zarr.json` of a leaf.

    Raises:
        DamagedStore: it is not a commit of this step.
        StoreFormatError: a newer version wrote it.
    """
    record = decode_record(data, key)
    leaf = CompactLeaf.of(data, record.fingerprint)
    return Commit(key, record.fingerprint, record.commit_summary(), record, Nodes(leaf), leaf)


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
    data = encode_leaf(record, committed.fingerprint, {**committed.nodes, **nodes})
    present = _read_undamaged(objects, committed)
    if present is None or present.leaf != committed.leaf:
        return False
    with changing(objects, committed.key):
        objects.put(leaf, data)
        return _is_whole(objects, parse(data, committed.key))


def _read_undamaged(objects: ObjectStore, committed: Commit) -> Commit | None:
    try:
        return read(objects, committed.key)
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
        drop_tensors(
            objects, written, WithoutTensors(now, "gc", "they were removed while the step was extended")
        )
    return True
