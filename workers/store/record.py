"""What a store and a commit say about themselves, as values that are checked while they are decoded.

Fields that are not known here come from later versions, and are passed over. A field that is missing, or that
no version of dump-ingest has written, is damage: readers print these values, add them up and build keys from
them.

Every byte of the `zarr.json` of a step counts, and damage may leave valid JSON. So its first attribute,
`dump_ingest_crc32c`, is a checksum: eight hexadecimal digits, the crc32c of the document without this
attribute.

A run has such a document for each rank and step. The metadata of the nodes is most of it, thirty times as
large once it is unpacked, and the same in most steps of a run but for the name of the generation. So it is
compact in memory: compressed, and compressed only once, because that takes longer than to read and check all
of a commit.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.metadata import version
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

import google_crc32c
import msgspec

from workers.dump.paths import to_text
from workers.errors import DamagedStore, StoreFormatError
from workers.model import StepKey
from workers.store import metadata
from workers.store.model import CommitSummary, Count, Origin, Totals
from workers.store.packed import pool
from workers.store.packed.pool import PooledArray

#: The metadata of the group of a step, which is its commit; relative to it.
LEAF = "zarr.json"
#: Packages whose versions the record states.
_SOFTWARE = ("dump-ingest", "numpy", "numcodecs", "distributed")
#: The name of a generation: a part of keys, hence no `..` and no `/`.
Fingerprint: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]{1,64}\Z")]
_LEAF_BEGIN = b'{"zarr_format":3,"node_type":"group","attributes":{'
_CHECKSUM_BEGIN = _LEAF_BEGIN + b'"dump_ingest_crc32c":"'
_CHECKSUM_NBYTES = len(_CHECKSUM_BEGIN) - len(_LEAF_BEGIN) + len('01234567",')
#: Where the metadata of the nodes begins in what `metadata.leaf` makes.
_NODES_BEGIN = b'"consolidated_metadata"'
#: Stands for the name of the generation. JSON has no such byte.
_STAND_IN = b"\0"


@dataclass(frozen=True, slots=True)
class WithoutTensors:
    """Why a step has no payloads of tensors. Its index, digests, statistics, findings and files are kept."""

    at: str
    """Since when, in ISO 8601."""
    by: str
    """`gc`: they were removed. `policy`: they were never stored."""
    reason: str

    def __str__(self) -> str:
        removed = f"were removed on {self.at[:16]} UTC by {self.by}"
        return f"the tensors {'were never stored' if self.by == 'policy' else removed}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PoisonedSource:
    """A source file that kills the process that reads it. Later plans of the step take it from here."""

    source: str
    """Its path as `workers.dump.paths.to_text` spells it."""
    size: Count
    mtime_ns: int
    bytes_kept: bool
    """Whether its bytes were read and stored, without decoding them."""


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The commit record, in the order in which it is written."""

    format_version: int
    without_tensors: WithoutTensors | None = None
    rank: int
    step: int | None
    fingerprint: Fingerprint
    committed_at: str
    """In ISO 8601."""
    source: Origin
    summary: Totals
    software: dict[str, str] = {}
    previous: tuple[Fingerprint, ...]
    """The generations that were committed before, the oldest first."""
    nets: tuple[str, ...] = ()
    """Names of the networks, sorted."""
    graphs: tuple[str, ...] = ()
    """Names of the graphs, sorted."""
    stored: dict[str, Count]
    """The size in bytes of each shard, by its path in the generation."""
    pool: dict[str, PooledArray] = {}
    """The arrays in the pool that rows refer to, by path relative to the root of the store."""
    checksums: dict[str, Count] = {}
    """The crc32c that each table ends with, by path of its chunk in the generation."""
    problems: tuple[str, ...] = ()
    """What is wrong with source files, each as `path: problem`; the first of them, if there are many."""
    poison: tuple[PoisonedSource, ...] = ()

    def __post_init__(self) -> None:
        datetime.fromisoformat(self.committed_at)
        for path in self.pool:
            if self.step is None or pool.step_of(path) != self.step:
                raise ValueError(f"{path!r:.120} is not an array in the pool of step {self.step}")

    @property
    def key(self) -> StepKey:
        """Rank and step."""
        return StepKey(self.rank, self.step)

    @property
    def committed_at_s(self) -> float:
        """The time of the commit as Unix time; a record without a time zone is in UTC."""
        at = datetime.fromisoformat(self.committed_at)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()

    @property
    def generations(self) -> tuple[str, ...]:
        """The committed generation, and those that it has replaced."""
        return self.fingerprint, *self.previous

    def commit_summary(self) -> CommitSummary:
        """Return the totals with rank, step and fingerprint."""
        totals = dict(zip(_TOTALS, _GET_TOTALS(self.summary), strict=True))
        return CommitSummary(key=self.key, fingerprint=self.fingerprint, **totals)

    def to_dict(self) -> dict[str, Any]:
        """Return the record in the form of the attributes of the leaf."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record


_TOTALS = tuple(field.name for field in fields(Totals))
_GET_TOTALS = attrgetter(*_TOTALS)  # at once: a run has a commit for each rank and step


def totals_of(summary: CommitSummary) -> Totals:
    """Return the part of a summary that the record has under `summary`."""
    return Totals(**dict(zip(_TOTALS, _GET_TOTALS(summary), strict=True)))


def new_record(
    summary: CommitSummary,
    *,
    origin: Origin,
    stored: Mapping[str, int],
    previous: Sequence[str] = (),
    now: datetime | None = None,
    **lists: Any,
) -> CommitRecord:
    """Return the record of a commit that is made now.

    Args:
        summary: the totals of the step.
        origin: where it comes from.
        stored: the size in bytes of each shard, by its path in the generation.
        previous: the generations that were committed before, the oldest first.
        now: the time of the commit.
        lists: other fields of the record.
    """
    return CommitRecord(
        format_version=metadata.FORMAT_VERSION,
        rank=summary.key.rank,
        step=summary.key.step,
        fingerprint=summary.fingerprint,
        committed_at=(now or datetime.now(UTC)).isoformat(timespec="milliseconds"),
        source=Origin(**{name: to_text(value) for name, value in asdict(origin).items()}),
        summary=totals_of(summary),
        software=_software(),
        previous=tuple(previous),
        stored=dict(stored),
        **lists,
    )


@cache
def _software() -> dict[str, str]:
    return {name: version(name) for name in _SOFTWARE}


class _Version(msgspec.Struct):
    format_version: int


class _Root(_Version):
    """What the root of a store states; a commit states the same and more."""

    fingerprint: object = None


class _Nodes(msgspec.Struct):
    metadata: dict[str, msgspec.Raw]
    """Left as they are: to make objects of them takes most of the time."""


class _Leaf(msgspec.Struct):
    attributes: metadata.OwnAttributes
    consolidated_metadata: _Nodes


_DECODE_LEAF = msgspec.json.Decoder(_Leaf).decode
_DECODE_ROOT = msgspec.json.Decoder(_Root).decode
_DECODE_VERSION = msgspec.json.Decoder(_Version).decode
_DECODE_RECORD = msgspec.json.Decoder(CommitRecord).decode
_DECODE_NODE = msgspec.json.Decoder(dict[str, Any]).decode


def check_root(data: bytes, url: str) -> None:
    """Check that this is the `zarr.json` of the root of a store that this version reads.

    Raises:
        StoreFormatError: another version wrote it, or it is something else, such as a commit.
        DamagedStore: it is not JSON: the root of this or of another store is damaged.
    """
    try:
        root = _DECODE_ROOT(metadata.own_attributes(data))
    except (msgspec.ValidationError, RecursionError) as exc:
        raise not_ours(url) from exc
    except msgspec.DecodeError as exc:
        raise DamagedStore(f"{url}: its zarr.json is damaged: {exc!s:.200}", hint=_root_hint(url)) from exc
    except ValueError as exc:
        raise not_ours(url) from exc
    if root.fingerprint is not None:
        raise not_ours(url)
    _check_format(root.format_version, url)


def not_ours(url: str) -> StoreFormatError:
    """Return the error for a place that holds something else."""
    return StoreFormatError(
        f"{url} is a Zarr hierarchy, but not a dump-ingest store",
        hint="Name a dump-ingest store, or for a new one a place of its own, such as run.zarr.",
    )


def missing_root(url: str) -> DamagedStore:
    """Return the error for a place that holds steps, but not the `zarr.json` of a store."""
    return DamagedStore(f"{url}: its zarr.json is missing, although it holds commits", hint=_root_hint(url))


def _root_hint(url: str) -> str:
    return f"`dump-ingest repair {shlex.quote(url)} --apply` writes it again."


def _check_format(version: int, what: str) -> None:
    known = metadata.FORMAT_VERSION
    if version != known:
        raise StoreFormatError(
            f"{what} has store format {version}; this version of dump-ingest reads {known}",
            hint="Upgrade dump-ingest on this machine."
            if version > known
            else "Ingest the dump into a new store.",
        )


def encode_leaf(record: CommitRecord, nodes: Mapping[str, metadata.Document]) -> bytes:
    """Return the `zarr.json` of a step, which is its commit: the record, and the metadata of all nodes.

    Args:
        record: the record.
        nodes: by path in the generation.
    """
    name = record.fingerprint
    below = {(f"{name}/{path}" if path else name): node for path, node in nodes.items()}
    return _with_checksum(metadata.encode(metadata.leaf(record.to_dict(), below)))


def _with_checksum(document: bytes) -> bytes:
    checksum = b'%08x",' % google_crc32c.value(document)
    return _CHECKSUM_BEGIN + checksum + document[len(_LEAF_BEGIN) :]


def without_checksum(data: bytes) -> bytes:
    """Return a `zarr.json` as it was before it got its checksum; as it is if it has none."""
    begin = len(_LEAF_BEGIN)
    return data[:begin] + data[begin + _CHECKSUM_NBYTES :] if data.startswith(_CHECKSUM_BEGIN) else data


def decode_record(data: bytes, key: StepKey) -> CommitRecord:
    """Read the commit record out of the `zarr.json` of a leaf, the whole of which is checked.

    Raises:
        DamagedStore: it is not a commit of this step.
        StoreFormatError: another version wrote it.
    """
    what = f"{key.path}/{LEAF}"
    # One that somebody has edited with another program has none.
    if data.startswith(_CHECKSUM_BEGIN) and data != _with_checksum(without_checksum(data)):
        raise DamagedStore(f"{what} is not a commit record: its crc32c does not match")
    try:
        leaf = _DECODE_LEAF(data)
        for node in leaf.consolidated_metadata.metadata.values():
            if memoryview(node)[0] != ord("{"):
                _DECODE_NODE(node)  # which says what is wrong
        # First: nothing else is known about the record of another version.
        _check_format(_DECODE_VERSION(leaf.attributes.dump_ingest).format_version, str(key))
        record = _DECODE_RECORD(leaf.attributes.dump_ingest)
    except (ValueError, RecursionError) as exc:
        raise DamagedStore(f"{what} is not a commit record: {exc!s:.300}") from exc
    if record.key != key:
        raise DamagedStore(f"{what} is the commit of rank {record.rank} step {record.step}, not of this step")
    return record


@dataclass(frozen=True, slots=True)
class CompactLeaf:
    """The content of one checked `zarr.json`, byte for byte: equal content, equal values."""

    before_nodes: bytes
    """All that precedes the metadata of the nodes: the commit record."""
    packed_nodes: bytes
    """The rest, compressed by zlib, with `_STAND_IN` for each occurrence of `name`."""
    name: bytes

    @classmethod
    def of(cls, data: bytes, fingerprint: str) -> CompactLeaf:
        """Pack the commit of a generation."""
        start = max(data.find(_NODES_BEGIN), 0)
        nodes, name = data[start:], fingerprint.encode()
        if _STAND_IN in nodes:  # damage that JSON decoders pass over
            name = _STAND_IN
        return cls(data[:start], _compressed(nodes.replace(name, _STAND_IN)), name)

    @property
    def data(self) -> bytes:
        """The `zarr.json`."""
        return self.before_nodes + zlib.decompress(self.packed_nodes).replace(_STAND_IN, self.name)

    @property
    def nodes(self) -> Mapping[str, metadata.Document]:
        """The metadata of every node of the generation, by path in it; unpacked when it is needed."""
        return _unpacked(self)


@lru_cache(maxsize=64)
def _compressed(nodes: bytes) -> bytes:
    return zlib.compress(nodes, 1)


@lru_cache(maxsize=64)
def _unpacked(leaf: CompactLeaf) -> dict[str, metadata.Document]:
    nodes = _DECODE_LEAF(leaf.data).consolidated_metadata.metadata
    return {path.partition("/")[2]: _DECODE_NODE(node) for path, node in nodes.items()}
