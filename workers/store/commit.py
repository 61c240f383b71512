"""The commit: how a step becomes visible, changes and goes, and what its record says.

Everything of a generation is written first; the `zarr.json` of the leaf goes last, in one PUT, and carries
the record and the metadata of every node below it. A leaf without that object does not exist for readers.

What follows from a committed generation, and was not computed at its commit, is added by committing it again
with more nodes (`extend`).

Changes of commits are announced, for the cubes and the copies of commits that must follow the change.

    consolidated/changed/{rank}.{step}.{fingerprint}     another generation takes its place
    consolidated/changed/{rank}.{step}.removed           the commit goes
    consolidated/changed/{rank}.{step}.begun-{change}    the generation stays, and its `zarr.json` changes
    consolidated/changed/{rank}.{step}.done-{change}     that has happened

The objects are empty, and stand until the consolidator has read the commit afterwards. That another
generation was committed, or the commit removed, shows in what is there now. That the same generation was
committed again does not: so that is announced twice, before and after. A writer that is killed in between
leaves the first one alone, and everybody reads the commit. After its grace period, `gc` announces the end in
place of the writer.

Announced is each change of a commit that exists. The first commit of a step is found by listing.

Tombstones say which steps were removed on purpose, so that nobody takes them for steps that are missing.

    rank_{r}/removed/zarr.json                                a group without members
    rank_{r}/removed/{step}.{milliseconds}.{fingerprint}      one for each removed generation

The middle of the name is when the removed generation was committed. So one listing has everything that a
watcher needs. What is in them is for people.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from msgspec import structs

from workers.errors import DamagedStore, SourceChanged
from workers.model import SourceFile, StepKey, grouped
from workers.store import metadata, tables
from workers.store.model import CommitSummary, rank_named, step_named
from workers.store.objects import ObjectStore
from workers.store.packed import pool
from workers.store.packed.pool import without_pool
from workers.store.record import (
    LEAF,
    CommitRecord,
    CompactLeaf,
    WithoutTensors,
    check_root,
    decode_record,
    encode_leaf,
    not_ours,
)
from workers.store.tables import checksums_of

#: Where the announcements are.
CHANGED = "consolidated/changed"
#: Stands there in the place of a generation if a commit was removed.
REMOVED = "removed"
#: Before the name of a change within a generation.
BEGUN, DONE = "begun-", "done-"
_BEGUN_PATH = re.compile(rf"{CHANGED}/[0-9]+\.[0-9]+\.{BEGUN}[0-9a-f]{{32}}")


def path_of(key: StepKey, word: str) -> str:
    """Return the object that announces a change: a generation, `REMOVED`, `BEGUN` or `DONE` with a name."""
    return f"{CHANGED}/{key.rank}.{key.step}.{word}"


def announce(objects: ObjectStore, key: StepKey, word: str) -> None:
    """Announce a change of a commit; see `path_of`. Nobody has run files from elsewhere."""
    if key.step is not None:
        objects.put(path_of(key, word), b"")


@contextmanager
def changing(objects: ObjectStore, key: StepKey) -> Iterator[None]:
    """Announce that a commit changes while the block runs, and may have the same generation afterwards.

    If the block raises an error, nobody knows whether it has changed: the announcement stands.
    """
    change = uuid.uuid4().hex
    announce(objects, key, f"{BEGUN}{change}")
    yield
    announce(objects, key, f"{DONE}{change}")


def has_begun(path: str) -> bool:
    """Return whether an object announces that a change within a generation has begun."""
    return _BEGUN_PATH.fullmatch(path) is not None


def end_of(begun: str) -> str:
    """Return the object that announces the end of a change, from the one that announces its beginning."""
    return begun.replace(f".{BEGUN}", f".{DONE}")


def unfinished(paths: Collection[str]) -> list[str]:
    """Return the objects that announce the beginning of a change whose end is not announced."""
    present = set(paths)
    return [path for path in paths if has_begun(path) and end_of(path) not in present]


def read_announcements(objects: ObjectStore) -> dict[StepKey, list[str]]:
    """Return the steps of which a commit was replaced, removed or changed, each with what is announced."""
    announced: dict[StepKey, list[str]] = {}
    for name in objects.children(CHANGED):
        rank, _, rest = name.partition(".")
        step, _, word = rest.partition(".")
        if rank.isdecimal() and step.isdecimal() and word and "." not in word:
            announced.setdefault(StepKey(int(rank), int(step)), []).append(word)
    return announced


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
    leaf: CompactLeaf

    @property
    def nodes(self) -> Mapping[str, metadata.Document]:
        """Metadata of every node of the generation, by its path in it."""
        return self.leaf.nodes

    @property
    def data(self) -> bytes:
        """The content of the `zarr.json`."""
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
        record = structs.replace(
            self.record,
            pool={path: self.record.pool[path]} if path in self.record.pool else {},
            previous=(),
            stored={},
            checksums={},
            problems=(),
            poison=(),
        )
        leaf = encode_leaf(record, {path: self.nodes[path]} if path in self.nodes else {})
        return replace(self, record=record, leaf=CompactLeaf.of(leaf, self.fingerprint))


def parse(data: bytes, key: StepKey) -> Commit:
    """Read the `zarr.json` of a leaf.

    Raises:
        DamagedStore: it is not a commit of this step.
        StoreFormatError: another version wrote it.
    """
    record = decode_record(data, key)
    leaf = CompactLeaf.of(data, record.fingerprint)
    return Commit(key, record.fingerprint, record.commit_summary(), record, leaf)


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
        StoreFormatError: it was written by another version, or is something else.
        DamagedStore: it is damaged, although there are commits.
    """
    data = objects.get(ROOT)
    if data is None:
        return None
    _check_root(objects, data)
    return metadata.FORMAT_VERSION


def ensure_root(objects: ObjectStore, rank: int | None = None) -> None:
    """Make a store, and the group of a rank, if there is none.

    Raises:
        StoreFormatError: the store was written by another version, or is something else.
        StoreError: it cannot be reached, or not written.
    """
    documents = {ROOT: root_document()}
    if rank is not None:
        documents[f"rank_{rank}/{ROOT}"] = rank_document(rank)
    present = objects.get_many(list(documents))  # in one round trip
    if ROOT in present:
        _check_root(objects, present[ROOT])
    for name, document in documents.items():
        if name not in present:
            objects.put(name, document)


def _check_root(objects: ObjectStore, data: bytes) -> None:
    """Check the root of a store; if it is not JSON, tell damage from something else."""
    try:
        check_root(data, objects.address.url)
    except DamagedStore as exc:
        if holds_commits(objects):
            raise
        raise not_ours(objects.address.url) from exc


def holds_commits(objects: ObjectStore) -> bool:
    """Return whether any step is committed, without reading the root. Takes a few requests."""
    return any(
        next(_leaves(objects, list_keys(objects, [rank])), None) is not None for rank in list_ranks(objects)
    )


def write(
    objects: ObjectStore,
    record: CommitRecord,
    nodes: Mapping[str, metadata.Document],
    chunks: Mapping[str, bytes],
    *,
    replaces: str | None = None,
) -> None:
    """Make a step visible. Safe to call again; the same generation is then written again as it was.

    A task can be stopped for any time in between, and others commit meanwhile. So the last thing before the
    commit is to look at the present one. Between this look and the write is a window of milliseconds that
    object stores offer no common way to close; watchers read commits again, see `Committed.recheck`.

    Args:
        objects: the store.
        record: the record; the generations that were committed before are added to it.
        nodes: metadata of every array and group of the generation, by path in it.
        chunks: what of the generation no task has written, by path in it.
        replaces: the only other generation whose place this may take, "" for none; None for any.

    Raises:
        SourceChanged: another generation was committed meanwhile, or tensors of this one were removed, also
            from the pool.
        StoreError: the store refused.
    """
    key, leaf = record.key, f"{record.key.path}/{LEAF}"
    _write_generation(objects, record, nodes, chunks)
    _refuse_if_removed(objects, record)
    data = objects.get(leaf)
    present = None
    with suppress(DamagedStore):  # a new one takes its place
        present = None if data is None else parse(data, key)
    if present is not None:
        _refuse_if_late(present, record, replaces)
        if present.fingerprint == record.fingerprint and present.record.checksums != record.checksums:
            # Another processor sums up in another order: these tables must be those that the commit lists.
            _write_generation(objects, record, nodes, chunks)
    history = [] if present is None else [*present.record.previous, present.fingerprint]
    previous = tuple(name for name in dict.fromkeys(history) if name != record.fingerprint)
    record = structs.replace(record, previous=previous)
    if data is None:
        objects.put(leaf, encode_leaf(record, nodes))
    else:
        replace_leaf(objects, key, encode_leaf(record, nodes), record.fingerprint, history)


def _write_generation(
    objects: ObjectStore,
    record: CommitRecord,
    nodes: Mapping[str, metadata.Document],
    chunks: Mapping[str, bytes],
) -> None:
    ensure_root(objects, record.rank)
    _put_nodes(objects, f"{record.key.path}/{record.fingerprint}", nodes, chunks)


def _put_nodes(
    objects: ObjectStore, prefix: str, nodes: Mapping[str, metadata.Document], chunks: Mapping[str, bytes]
) -> None:
    """Write chunks and nodes of a generation; its own group, whose path is "", last."""
    documents = {
        f"{prefix}/{path}/{LEAF}" if path else f"{prefix}/{LEAF}": metadata.encode(nodes[path])
        for path in sorted(nodes, reverse=True)
    }
    objects.put_many({**{f"{prefix}/{path}": data for path, data in chunks.items()}, **documents})


def _refuse_if_removed(objects: ObjectStore, record: CommitRecord) -> None:
    """Raise SourceChanged if what a commit is about to refer to is gone.

    gc may have taken an array in the pool for unused; or another watcher may have committed the same
    generation before, and gc removed the step since then.
    """
    key = record.key
    of_pool = objects.sizes(pool.pool_of(key)) if record.pool else {}
    for path in record.pool:
        below = path.removeprefix(f"{pool.pool_of(key)}/")
        if not {f"{below}/{pool.SHARD}", f"{below}/{pool.NODE}"} <= of_pool.keys():
            raise SourceChanged(f"{key}: {path} was removed from the pool meanwhile")
    of_step = objects.sizes(f"{key.path}/{record.fingerprint}") if record.stored else {}
    if lost := record.stored.keys() - of_step.keys():
        raise SourceChanged(f"{key}: {min(lost)} was removed from the store meanwhile")


def _refuse_if_late(present: Commit, record: CommitRecord, replaces: str | None) -> None:
    if present.fingerprint == record.fingerprint:
        removed = present.without_tensors
        if removed is not None and removed.by == "gc" and record.without_tensors is None:
            raise SourceChanged(f"{present.key}: its tensors were removed from the store meanwhile")
    elif replaces is not None and present.fingerprint != replaces:
        raise SourceChanged(f"{present.key}: another generation of it was committed since it was planned")


def replace_leaf(
    objects: ObjectStore, key: StepKey, data: bytes, fingerprint: str, history: Collection[str]
) -> None:
    """Write a commit in the place of another one. That is announced first: see `workers.store.commit`.

    Args:
        objects: the store.
        key: the step.
        data: the new `zarr.json`.
        fingerprint: the generation in it.
        history: the present generation and those that it has replaced; none if the commit is damaged.
    """
    if history and fingerprint not in history:
        announce(objects, key, fingerprint)
        objects.put(f"{key.path}/{LEAF}", data)
    else:
        with changing(objects, key):
            objects.put(f"{key.path}/{LEAF}", data)


def drop_tensors(objects: ObjectStore, commit: Commit, without: WithoutTensors) -> Commit:
    """Commit a step again without the payloads of its tensors. Deletes nothing: that is for the caller.

    From here on no reader looks for them, so no plain Zarr reader takes a missing chunk for zeros.
    """
    record = commit.record
    nodes = {path: node for path, node in commit.nodes.items() if not metadata.is_of_tensors(path)}
    kept = {path: size for path, size in record.stored.items() if not metadata.is_of_tensors(path)}
    freed = sum(record.stored.values()) - sum(kept.values())
    freed += sum(array.nbytes for array in record.pool.values())
    gone = len(record.stored) - len(kept) + len(commit.nodes) - len(nodes) + 2 * len(record.pool)
    summary = replace(
        record.summary,
        stored_bytes=max(record.summary.stored_bytes - freed, 0),
        objects=max(record.summary.objects - gone, 0),
    )
    record = structs.replace(record, without_tensors=without, pool={}, summary=summary, stored=kept)
    data = encode_leaf(record, nodes)
    replace_leaf(objects, commit.key, data, record.fingerprint, record.generations)
    return parse(data, commit.key)


def extend(
    objects: ObjectStore,
    committed: Commit,
    nodes: Mapping[str, metadata.Document],
    chunks: Mapping[str, bytes],
) -> bool:
    """Commit a step again with further nodes; return whether it was still as it was when it was read.

    Readers find the step at any moment, with the nodes or without.

    Args:
        objects: the store.
        committed: the step.
        nodes: metadata of the arrays and groups that are added, by path in the generation.
        chunks: their chunks, by path in the generation.

    Raises:
        StoreError: the store refused; the step is as it was.
    """
    record = committed.record
    _put_nodes(objects, committed.prefix, nodes, chunks)
    summary = replace(
        record.summary,
        stored_bytes=record.summary.stored_bytes + sum(map(len, chunks.values())),
        objects=record.summary.objects + len(chunks) + len(nodes),
    )
    checksums = {**record.checksums, **checksums_of(chunks)}
    record = structs.replace(record, summary=summary, checksums=checksums)
    if not is_unchanged(objects, committed):
        return False
    with changing(objects, committed.key):
        data = encode_leaf(record, {**committed.nodes, **nodes})
        objects.put(f"{committed.key.path}/{LEAF}", data)
        return _is_whole(objects, parse(data, committed.key))


def is_unchanged(objects: ObjectStore, committed: Commit) -> bool:
    """Return whether the commit of a step is still the one that was read, byte for byte."""
    return objects.get(f"{committed.key.path}/{LEAF}") == committed.data


def _is_whole(objects: ObjectStore, written: Commit) -> bool:
    """Return whether a commit has its objects; withdraw what is wrong in it if `gc` deleted some.

    Between the last look at a commit and the write of another is a window of milliseconds, in which `gc` may
    hide the step, or its tensors, and begin to delete. It hides before it deletes, and so does this.
    """
    sizes = objects.sizes(written.prefix)
    if not set(tables.chunk_keys()) <= sizes.keys():
        withdraw(objects, written.key)
        return False
    lost = written.record.stored.keys() - sizes.keys()
    if written.without_tensors is None and any(map(metadata.is_of_tensors, lost)):
        now = datetime.now(UTC).isoformat(timespec="seconds")
        why = "they were removed while the step was extended"
        drop_tensors(objects, written, WithoutTensors(now, "gc", why))
    return True


def withdraw(objects: ObjectStore, key: StepKey) -> None:
    """Announce that a commit goes, and remove it."""
    announce(objects, key, REMOVED)
    objects.delete(f"{key.path}/{LEAF}")


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
        yield from ((names[name], data) for name, data in objects.get_many(list(names)).items())


def list_ranks(objects: ObjectStore) -> list[int]:
    """Return the ranks of which the store has anything at all, in order."""
    return sorted(rank for rank in map(rank_named, objects.children()) if rank is not None)


def list_steps(objects: ObjectStore, rank: int) -> set[int]:
    """Return the steps of a rank of which the store has anything at all, committed or not."""
    return {key.step for key in list_keys(objects, [rank]) if key.step is not None}


def list_keys(objects: ObjectStore, ranks: Iterable[int] | None = None) -> list[StepKey]:
    """Return the steps of which the store has anything, committed or not, in order; run files, too."""
    keys = [
        StepKey(rank, step_named(name))
        for rank in (list_ranks(objects) if ranks is None else ranks)
        for name in objects.children(f"rank_{rank}")
        if name == "run" or step_named(name) is not None
    ]
    return sorted(keys, key=lambda key: key.order)


_NAME = re.compile(r"([0-9]{1,18})\.([0-9]{1,15})\.([0-9A-Za-z_-]{1,64})")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A step that was removed."""

    rank: int
    step: int
    fingerprint: str
    committed_ms: int
    """When the removed generation was committed, in milliseconds since the epoch."""

    @classmethod
    def from_name(cls, rank: int, name: str) -> Tombstone | None:
        """Return the tombstone of a rank that has this name; None if it is not the name of one."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        step, committed_ms, fingerprint = match.groups()
        return cls(rank, int(step), fingerprint, int(committed_ms))

    @property
    def path(self) -> str:
        """Where it is, relative to the store."""
        return f"{_directory(self.rank)}/{self.step}.{self.committed_ms}.{self.fingerprint}"

    def covers(self, fingerprint: str, files: Iterable[SourceFile] = ()) -> bool:
        """Return whether a listing shows the removed files, or some of them.

        Args:
            fingerprint: of the listing.
            files: of the listing; empty if they are not known.
        """
        if without_pool(fingerprint) == without_pool(self.fingerprint):
            return True
        newest = max((file.mtime_ns for file in files), default=None)
        return newest is not None and newest <= self.committed_ms * 1_000_000


def write_tombstone(objects: ObjectStore, tombstone: Tombstone, *, removed_at: str, why: str) -> None:
    """Write a tombstone; `removed_at` (ISO 8601) and `why` are for people. Safe to call again."""
    content = {**asdict(tombstone), "removed_at": removed_at, "why": why}
    objects.put(tombstone.path, json.dumps(content).encode())


def ensure_tombstones(objects: ObjectStore, rank: int) -> None:
    """Make the group that holds the tombstones of a rank."""
    # Readers do not list the members of a group with such metadata: tombstones are not part of the hierarchy.
    no_members = {"kind": "inline", "must_understand": False, "metadata": {}}
    group = {**metadata.group(), "consolidated_metadata": no_members}
    objects.put(f"{_directory(rank)}/zarr.json", metadata.encode(group))


def read_tombstones(objects: ObjectStore, rank: int) -> dict[int, list[Tombstone]]:
    """Return the tombstones of a rank by step."""
    named = (Tombstone.from_name(rank, name) for name in objects.children(_directory(rank)))
    return grouped((tombstone.step, tombstone) for tombstone in named if tombstone is not None)


def _directory(rank: int) -> str:
    return f"rank_{rank}/removed"
