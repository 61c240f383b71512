"""The commit: how a step becomes visible, and what its record says.

Everything of a generation is written first; the `zarr.json` of the leaf goes last, in one PUT, and carries
the record and the metadata of every node below it. A leaf without that object does not exist for readers.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

from workers.dump.paths import to_text
from workers.errors import DamagedStore, SourceChanged, StoreFormatError
from workers.model import StepKey
from workers.store import metadata
from workers.store.model import CommitSummary, Origin
from workers.store.objects import ObjectStore

ROOT = "zarr.json"
LEAF = "zarr.json"
#: Commits that are asked for before the first of them is looked at.
_AT_ONCE = 256
#: Below it: an object for each commit that took the place of another one, until the consolidated view has it.
CHANGED = "consolidated/changed"
#: Stands there in the place of a generation where a commit was removed.
REMOVED = "removed"
#: Totals that stand elsewhere in the record, or in tables.
_NOT_IN_RECORD = ("key", "fingerprint", "first_findings")
_SOFTWARE = ("dump-ingest", "numpy", "numcodecs", "distributed")


@dataclass(frozen=True, slots=True)
class WithoutTensors:
    """Why a step has no payloads of tensors. Its index, digests, statistics, findings and files are there."""

    at: str
    """Since when, in ISO 8601."""
    by: str
    """`gc`: they were removed. `policy`: they were never stored."""
    reason: str
    """For people."""

    def __str__(self) -> str:
        done = "were never stored" if self.by == "policy" else f"were removed on {self.at[:16]} by {self.by}"
        return f"the tensors {done}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Commit:
    """What a reader knows of a committed step before it reads any table."""

    key: StepKey
    fingerprint: str
    summary: CommitSummary
    record: Mapping[str, Any]
    nodes: Mapping[str, metadata.Document]
    """Metadata of every node of the generation, by its path in it."""
    without_tensors: WithoutTensors | None = None
    """Why there are no arrays `tensors/*`; None where they are there."""

    @property
    def prefix(self) -> str:
        """Where the generation is, relative to the store."""
        return f"{self.key.path}/{self.fingerprint}"


class Nodes(Mapping[str, metadata.Document]):
    """The metadata of the nodes of a generation, by path in it; unpacked when it is asked for.

    Unpacked it takes thirty times as much memory, and a run has a commit for each rank and step.
    """

    __slots__ = ("_packed",)

    def __init__(self, packed: bytes) -> None:
        """Take the `zarr.json` of a leaf, compressed by zlib."""
        self._packed = packed

    def __getitem__(self, path: str) -> metadata.Document:
        return _unpacked(self._packed)[path]

    def __iter__(self) -> Iterator[str]:
        return iter(_unpacked(self._packed))

    def __len__(self) -> int:
        return len(_unpacked(self._packed))

    def __reduce__(self) -> tuple[Any, ...]:
        return Nodes, (self._packed,)


@lru_cache(maxsize=64)
def _unpacked(packed: bytes) -> dict[str, metadata.Document]:
    document = json.loads(zlib.decompress(packed))
    length = len(document["attributes"][metadata.ATTRIBUTE]["fingerprint"]) + 1
    inline: dict[str, metadata.Document] = document["consolidated_metadata"]["metadata"]
    return {path[length:]: node for path, node in inline.items()}


def ensure_root(objects: ObjectStore) -> None:
    """Make a store where there is none.

    Raises:
        StoreFormatError: the store was written by a newer version, or is something else.
        StoreError: it cannot be reached, or not written.
    """
    _ensure_root(objects, objects.get(ROOT))


def _ensure_root(objects: ObjectStore, found: bytes | None) -> None:
    if _root_attributes(objects, found) is None:
        root = metadata.group({metadata.ATTRIBUTE: {"format_version": metadata.FORMAT_VERSION}})
        objects.put(ROOT, metadata.encode(root))


def read_root(objects: ObjectStore) -> Mapping[str, Any] | None:
    """Return the attributes of the store, or None when there is no store yet.

    Raises:
        StoreFormatError: it was written by a newer version, or is something else.
    """
    return _root_attributes(objects, objects.get(ROOT))


def _root_attributes(objects: ObjectStore, data: bytes | None) -> Mapping[str, Any] | None:
    if data is None:
        return None
    try:
        attributes = json.loads(data)["attributes"][metadata.ATTRIBUTE]
        format_version = int(attributes["format_version"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        raise StoreFormatError(
            f"{objects.address.url} is a Zarr hierarchy, but no dump-ingest store",
            hint="Choose another --store; nothing was written.",
        ) from exc
    _check_format(format_version, objects.address.url)
    return dict(attributes)


def write(
    objects: ObjectStore,
    summary: CommitSummary,
    *,
    origin: Origin,
    nodes: Mapping[str, metadata.Document],
    objects_to_write: Mapping[str, bytes],
    facts: Mapping[str, Any],
    without_tensors: WithoutTensors | None = None,
    replaces: str | None = None,
    now: datetime | None = None,
) -> None:
    """Make a step visible. Safe to call again; the same generation is then written again as it was.

    A task can be stopped for any time in between, and others commit meanwhile. So the last thing before the
    commit is to look what is there. Between this look and the write is a window of milliseconds that object
    stores offer no common way to close; watchers read commits again, see `Committed.recheck`.

    Args:
        objects: the store.
        summary: the totals of the step.
        origin: where it comes from.
        nodes: metadata of every array and group of the generation, by path in it.
        objects_to_write: chunks of the generation that no task has written, by path in it.
        facts: further fields of the record.
        without_tensors: why no payloads of tensors are among the nodes, if so.
        replaces: the only other generation whose place this may take, "" for none; None for any.
        now: the time of the commit.

    Raises:
        SourceChanged: another generation was committed meanwhile, or the tensors of this one were removed.
        StoreError: the store refused.
    """
    key, fingerprint = summary.key, summary.fingerprint
    rank, leaf = f"rank_{key.rank}/zarr.json", f"{key.path}/{LEAF}"
    found = objects.get_many([ROOT, rank])  # in one round trip
    _ensure_root(objects, found.get(ROOT))
    if rank not in found:
        objects.put(rank, metadata.encode(metadata.group({"rank": key.rank})))
    prefix = f"{key.path}/{fingerprint}"
    documents = {f"{prefix}/{path}/zarr.json": metadata.encode(node) for path, node in nodes.items() if path}
    documents[f"{prefix}/zarr.json"] = metadata.encode(nodes[""])
    objects.put_many({**{f"{prefix}/{path}": data for path, data in objects_to_write.items()}, **documents})
    there = _there(objects, key)
    if there is not None:
        _refuse_if_late(there, fingerprint, replaces, without_tensors)
    history = [] if there is None else [*there.record["previous"], there.fingerprint]
    record = {
        **_without_tensors_fields(without_tensors),
        "rank": key.rank,
        "step": key.step,
        "fingerprint": fingerprint,
        "committed_at": (now or datetime.now(UTC)).isoformat(timespec="milliseconds"),
        "source": {name: to_text(value) for name, value in asdict(origin).items()},
        "summary": {k: v for k, v in asdict(summary).items() if k not in _NOT_IN_RECORD},
        "software": _software(),
        "previous": [name for name in dict.fromkeys(history) if name != fingerprint],
        **facts,
    }
    if key.step is not None and any(name != fingerprint for name in history):
        # Before the commit: an announcement too many is harmless, one too few would leave the view as it was.
        objects.put(f"{CHANGED}/{key.rank}.{key.step}.{fingerprint}", b"")
    below = {(f"{fingerprint}/{path}" if path else fingerprint): node for path, node in nodes.items()}
    objects.put(leaf, metadata.encode(metadata.leaf(record, below)))


def drop_tensors(objects: ObjectStore, found: Commit, without: WithoutTensors) -> Commit:
    """Commit a step again without the payloads of its tensors. Deletes nothing: that is for the caller.

    From here on no reader looks for them, so no plain Zarr reader takes a missing chunk for zeros.
    """
    nodes = {path: node for path, node in found.nodes.items() if not metadata.is_of_tensors(path)}
    dropped = {path: size for path, size in found.record["stored"].items() if metadata.is_of_tensors(path)}
    summary = dict(found.record["summary"])
    summary["stored_bytes"] = max(summary["stored_bytes"] - sum(dropped.values()), 0)
    summary["objects"] = max(summary["objects"] - len(dropped) - len(found.nodes) + len(nodes), 0)
    record = {
        **found.record,
        **_without_tensors_fields(without),
        "summary": summary,
        "stored": {path: size for path, size in found.record["stored"].items() if path not in dropped},
    }
    below = {f"{found.fingerprint}/{path}".rstrip("/"): node for path, node in nodes.items()}
    data = metadata.encode(metadata.leaf(record, below))
    objects.put(f"{found.key.path}/{LEAF}", data)
    return parse(data, found.key)


def _without_tensors_fields(without: WithoutTensors | None) -> dict[str, Any]:
    if without is None:
        return {"format_version": metadata.FORMAT_VERSION}
    return {
        "format_version": metadata.WITHOUT_TENSORS_FORMAT_VERSION,
        "without_tensors": asdict(without),
    }


def _there(objects: ObjectStore, key: StepKey) -> Commit | None:
    """Return the commit that there is; before a damaged one nothing is known, and its place is taken."""
    try:
        return read(objects, key)
    except DamagedStore:
        return None


def _refuse_if_late(
    there: Commit, fingerprint: str, replaces: str | None, without_tensors: WithoutTensors | None
) -> None:
    """Raise SourceChanged where the commit that is there is not one that the plan knew of."""
    if there.fingerprint == fingerprint:
        if there.without_tensors is not None and there.without_tensors.by == "gc" and without_tensors is None:
            raise SourceChanged(f"{there.key}: its tensors were removed from the store meanwhile")
    elif replaces is not None and there.fingerprint != replaces:
        raise SourceChanged(f"{there.key}: another generation of it was committed since it was planned")


@cache
def _software() -> dict[str, str]:
    return {name: version(name) for name in _SOFTWARE}


def read(objects: ObjectStore, key: StepKey) -> Commit | None:
    """Return the commit of a step, or None when the step is not there."""
    data = objects.get(f"{key.path}/{LEAF}")
    return None if data is None else parse(data, key)


def read_many(
    objects: ObjectStore, keys: Sequence[StepKey]
) -> tuple[dict[StepKey, Commit], dict[StepKey, str]]:
    """Return the commits of those of the steps that are there, and what is wrong with damaged ones.

    Both in the order of `keys`; a bounded number is asked for at once.
    """
    commits: dict[StepKey, Commit] = {}
    damaged: dict[StepKey, str] = {}
    for start in range(0, len(keys), _AT_ONCE):
        names = {f"{key.path}/{LEAF}": key for key in keys[start : start + _AT_ONCE]}
        for name, data in objects.get_many(list(names)).items():
            try:
                commits[names[name]] = parse(data, names[name])
            except DamagedStore as exc:
                damaged[names[name]] = exc.message
    return commits, damaged


def read_fingerprints(objects: ObjectStore, keys: Sequence[StepKey]) -> dict[StepKey, str]:
    """Return what is committed of those of the steps that are there, by the name of the generation.

    A damaged commit is none. Takes half the time of `read_many`, and keeps nothing else.
    """
    found: dict[StepKey, str] = {}
    for start in range(0, len(keys), _AT_ONCE):
        names = {f"{key.path}/{LEAF}": key for key in keys[start : start + _AT_ONCE]}
        for name, data in objects.get_many(list(names)).items():
            with suppress(DamagedStore):
                found[names[name]] = _parsed(data, names[name])[0].fingerprint
    return found


def list_ranks(objects: ObjectStore) -> list[int]:
    """Return the ranks for which there is anything at all, in order."""
    names = objects.children()
    return sorted(int(name[5:]) for name in names if name.startswith("rank_") and name[5:].isdecimal())


def list_steps(objects: ObjectStore, rank: int) -> set[int]:
    """Return the steps of a rank for which there is anything at all, committed or not."""
    names = objects.children(f"rank_{rank}")
    return {int(name[5:]) for name in names if name.startswith("step_") and name[5:].isdecimal()}


def list_keys(objects: ObjectStore, ranks: Iterable[int] | None = None) -> list[StepKey]:
    """Return the steps for which there is anything at all, committed or not, in order; run files, too."""
    keys = []
    for rank in list_ranks(objects) if ranks is None else ranks:
        for name in objects.children(f"rank_{rank}"):
            if name == "run":
                keys.append(StepKey(rank, None))
            elif name.startswith("step_") and name[5:].isdecimal():
                keys.append(StepKey(rank, int(name[5:])))
    return sorted(keys, key=lambda key: key.order)


def parse(data: bytes, key: StepKey) -> Commit:
    """Read the `zarr.json` of a leaf.

    Raises:
        DamagedStore: it is no commit of this step.
        StoreFormatError: a newer version wrote it.
    """
    summary, record, without = _parsed(data, key)
    nodes = Nodes(zlib.compress(data, 1))  # unpacked when they are needed
    return Commit(key, summary.fingerprint, summary, record, nodes, without)


def _parsed(data: bytes, key: StepKey) -> tuple[CommitSummary, Mapping[str, Any], WithoutTensors | None]:
    try:
        document = json.loads(data)
        record = document["attributes"][metadata.ATTRIBUTE]
        _check_format(record["format_version"], str(key), metadata.WITHOUT_TENSORS_FORMAT_VERSION)
        if (record["rank"], record["step"]) != (key.rank, key.step):
            raise DamagedStore(
                f"{key.path}/{LEAF} is the commit of rank {record['rank']} step {record['step']}"
            )
        fingerprint = record["fingerprint"]
        _check_record(record)
        # A later version may have added totals that this one does not know.
        known = {field.name for field in fields(CommitSummary)} - {*_NOT_IN_RECORD}
        totals = {name: value for name, value in record["summary"].items() if name in known}
        summary = CommitSummary(key=key, fingerprint=fingerprint, **totals)
        _check_nodes(document["consolidated_metadata"]["metadata"])
        without = record.get("without_tensors")
        without_tensors = None if without is None else WithoutTensors(**without)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise DamagedStore(f"{key.path}/{LEAF} is no commit record: {exc!r:.300}") from exc
    return summary, record, without_tensors


def _check_nodes(nodes: Mapping[str, Any]) -> None:
    if not all(isinstance(node, dict) for node in nodes.values()):
        raise TypeError("metadata")


#: The name of a generation: a part of keys, hence no `..` and no `/`.
_FINGERPRINT = re.compile(r"[0-9A-Za-z_-]{1,64}")
_INTEGERS = {field.name for field in fields(CommitSummary) if field.type == "int"}


def _check_record(record: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError for a record that nobody wrote who meant it: readers print and add these.

    What is not known here may be anything, for later versions.
    """
    summary, source, stored = record["summary"], record["source"], record["stored"]
    names = [record["fingerprint"], *record["previous"]]
    if not all(isinstance(name, str) and _FINGERPRINT.fullmatch(name) for name in names):
        raise ValueError("fingerprint")
    for name in _INTEGERS & summary.keys():
        if type(summary[name]) is not int or not 0 <= summary[name] < 2**63:
            raise ValueError(name)
    if summary["status"] not in ("complete", "partial"):
        raise ValueError("status")
    counts = (stored, summary.get("findings", {}))
    if not all(type(n) is int and 0 <= n < 2**63 for one in counts for n in one.values()):
        raise ValueError("stored")
    lists = [record.get(name, []) for name in ("problems", "nets", "graphs")]
    tables = [source, summary.get("severities", {}), summary.get("failed_rules", {})]
    tables.append(record.get("without_tensors") or {})
    texts = [*(text for one in lists for text in one), *(text for one in tables for text in one.values())]
    if not all(isinstance(one, list) for one in lists) or not all(isinstance(text, str) for text in texts):
        raise TypeError("text")
    datetime.fromisoformat(record["committed_at"])


def _check_format(version: int, what: str, newest: int = metadata.FORMAT_VERSION) -> None:
    if metadata.OLDEST_FORMAT_VERSION <= version <= newest:
        return
    newer = version > newest
    raise StoreFormatError(
        f"{what} has store format {version}; this version of dump-ingest reads "
        f"{metadata.OLDEST_FORMAT_VERSION} to {newest}",
        hint="Upgrade dump-ingest on this machine; nothing was written."
        if newer
        else "Ingest the dump into a new store; nothing was written.",
    )
