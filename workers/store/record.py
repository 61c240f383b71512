"""What a store and a commit say about themselves, as values that are checked while they are decoded.

Fields that are not known here come from later versions, and are passed over. A field that is missing, or that
no version of dump-ingest has written, is damage: readers print these values, add them up and build keys from
them.

Every byte of the `zarr.json` of a step counts, and damage may leave valid JSON. So its first attribute,
`dump_ingest_crc32c`, is a checksum: eight hexadecimal digits, the crc32c of the document without
this attribute.

A run has such a document for each rank and step. The metadata of the nodes is most of it, thirty times as
large once it is unpacked, and the same in most steps of a run but for the name of the generation. So it is
compact in memory: compressed, and compressed only once, because that takes longer than to read and check all
of a commit.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
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


@dataclass(frozen=True, slots=True)
class WithoutTensors:
    """Why a step has no payloads of tensors. Its index, digests, statistics, findings and files are kept."""

    at: str
    """Since when, in ISO 8601."""
    by: str
    """`gc`: they were removed. `policy`: they were never stored."""
    reason: str
    """For people."""

    def __str__(self) -> str:
        done = (
            "were never stored" if self.by == "policy" else f"were removed on {self.at[:16]} UTC by {self.by}"
        )
        return f"the tensors {done}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PoisonedSource:
    """A source file that kills the process that reads it. Later plans of the step take it from here."""

    source: str
    """Its path as `workers.dump.paths.to_text` spells it."""
    size: Count
    mtime_ns: int
    bytes_kept: bool
    """Whether its bytes were read and stored, without decoding them."""


@dataclass(frozen=True, slots=True)
class StepContents:
    """What the record of a step lists besides its totals."""

    nets: tuple[str, ...]
    """Names of the networks, sorted."""
    graphs: tuple[str, ...]
    """Names of the graphs, sorted."""
    stored: Mapping[str, int]
    """The size in bytes of each shard, by its path in the generation."""
    problems: tuple[str, ...]
    """What is wrong with source files, each as `path: problem`; the first of them, if there are many."""
    poison: tuple[PoisonedSource, ...] = ()
    has_views: bool = False
    """Whether files are made of parts, or tensors are picked from them; see `Tables.has_views`."""
    pool: Mapping[str, PooledArray] = field(default_factory=dict)
    """The arrays in the pool that rows refer to, by path relative to the root of the store."""
    checksums: Mapping[str, int] = field(default_factory=dict)
    """The crc32c that each table ends with, by path of its chunk in the generation."""


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
    """Versions of the packages that wrote it."""
    previous: tuple[Fingerprint, ...]
    """The generations that were committed before, the oldest first."""
    nets: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    stored: dict[str, Count]
    pool: dict[str, PooledArray] = {}
    """The arrays in the pool that rows refer to, by path relative to the root of the store."""
    checksums: dict[str, Count] = {}
    """The crc32c that each table ends with, by path of its chunk in the generation."""
    problems: tuple[str, ...] = ()
    poison: tuple[PoisonedSource, ...] = ()

    def __post_init__(self) -> None:
        datetime.fromisoformat(self.committed_at)
        for path in self.pool:
            if self.step is None or pool.step_of(path) != self.step:
                message = f"{path!r:.120} is not an array in the pool of step {self.step}"
                raise ValueError(message)

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
        return CommitSummary(key=StepKey(self.rank, self.step), fingerprint=self.fingerprint, **totals)

    def abridged(self) -> CommitRecord:
        """Return the record without its lists, which may be long."""
        return msgspec.structs.replace(
            self, previous=(), nets=(), graphs=(), stored={}, pool={}, checksums={}, problems=(), poison=()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record in the form of the attributes of the leaf."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        # Most steps have none of them, and earlier versions did not know them.
        for name in ("without_tensors", "pool", "checksums", "poison"):
            if not record[name]:
                del record[name]
        for name in ("skipped", "tensor_problems"):
            if not record["summary"][name]:
                del record["summary"][name]
        return record


_TOTALS = tuple(field.name for field in fields(Totals))
_GET_TOTALS = attrgetter(*_TOTALS)  # at once: a run has a commit for each rank and step


def totals_of(summary: CommitSummary) -> Totals:
    """Return the part of a summary that the record has under `summary`."""
    return Totals(**dict(zip(_TOTALS, _GET_TOTALS(summary), strict=True)))


class _Version(msgspec.Struct):
    format_version: int


class _Root(_Version):
    """What the root of a store states; a commit states the same and more."""

    fingerprint: object = None


class _LeafAttributes(msgspec.Struct):
    dump_ingest: msgspec.Raw


class _InlineMetadata(msgspec.Struct):
    metadata: dict[str, dict[str, Any]]


class _Leaf(msgspec.Struct):
    attributes: _LeafAttributes
    consolidated_metadata: _InlineMetadata


class _PackedMetadata(msgspec.Struct):
    metadata: dict[str, msgspec.Raw]


class _PackedLeaf(msgspec.Struct):
    """A leaf whose nodes are left as they are: to make objects of them takes most of the time."""

    attributes: _LeafAttributes
    consolidated_metadata: _PackedMetadata


_DECODE_LEAF = msgspec.json.Decoder(_Leaf).decode
_DECODE_PACKED_LEAF = msgspec.json.Decoder(_PackedLeaf).decode
_OBJECT = ord("{")
_DECODE_ROOT = msgspec.json.Decoder(_Root).decode
_DECODE_VERSION = msgspec.json.Decoder(_Version).decode
_DECODE_RECORD = msgspec.json.Decoder(CommitRecord).decode


def root_format(data: bytes, url: str) -> int:
    """Return the format version of the store whose root has this `zarr.json`.

    Raises:
        StoreFormatError: it was written by a newer version, or is something else, such as a commit.
        DamagedStore: it is not JSON: the root of this or of another store is damaged.
    """
    try:
        root = _DECODE_ROOT(metadata.own_attributes(data))
    except (msgspec.ValidationError, RecursionError) as exc:
        raise not_ours(url) from exc
    except msgspec.DecodeError as exc:
        message = f"{url}: its zarr.json is damaged: {exc!s:.200}"
        raise DamagedStore(message, hint=_root_hint(url)) from exc
    except ValueError as exc:
        raise not_ours(url) from exc
    if root.fingerprint is not None:
        raise not_ours(url)
    _check_format(root.format_version, url, metadata.FORMAT_VERSION)
    return root.format_version


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


def decode_record(data: bytes, key: StepKey) -> CommitRecord:
    """Read the commit record out of the `zarr.json` of a leaf, the whole of which is checked.

    Raises:
        DamagedStore: it is not a commit of this step.
        StoreFormatError: a newer version wrote it.
    """
    if has_wrong_checksum(data):
        raise DamagedStore(f"{key.path}/{LEAF} is not a commit record: its crc32c does not match")
    try:
        leaf = _DECODE_PACKED_LEAF(data)
        if not all(memoryview(node)[0] == _OBJECT for node in leaf.consolidated_metadata.metadata.values()):
            _DECODE_LEAF(data)  # which says what is wrong
        written = leaf.attributes.dump_ingest
        # First: nothing else is known about the record of a later version.
        version = _DECODE_VERSION(written).format_version
        _check_format(version, str(key), metadata.NEWEST_LEAF_FORMAT_VERSION)
        record = _DECODE_RECORD(written)
    except (ValueError, RecursionError) as exc:
        raise DamagedStore(f"{key.path}/{LEAF} is not a commit record: {exc!s:.300}") from exc
    if (record.rank, record.step) != (key.rank, key.step):
        raise DamagedStore(
            f"{key.path}/{LEAF} is the commit of rank {record.rank} step {record.step}, not of this step"
        )
    return record


def decode_nodes(data: bytes) -> dict[str, metadata.Document]:
    """Return the metadata of every node of a generation, by path in it, out of a checked `zarr.json`."""
    leaf = _DECODE_LEAF(data)
    prefix_length = len(_DECODE_RECORD(leaf.attributes.dump_ingest).fingerprint) + 1
    return {path[prefix_length:]: node for path, node in leaf.consolidated_metadata.metadata.items()}


def _check_format(version: int, what: str, newest: int) -> None:
    if metadata.OLDEST_FORMAT_VERSION <= version <= newest:
        return
    oldest = metadata.OLDEST_FORMAT_VERSION
    known = f"{oldest} to {newest}" if newest > oldest else f"{newest}"
    raise StoreFormatError(
        f"{what} has store format {version}; this version of dump-ingest reads {known}",
        hint="Upgrade dump-ingest on this machine."
        if version > newest
        else "Ingest the dump into a new store.",
    )


def new_record(
    summary: CommitSummary,
    *,
    origin: Origin,
    contents: StepContents,
    without_tensors: WithoutTensors | None = None,
    previous: Sequence[str] = (),
    now: datetime | None = None,
) -> CommitRecord:
    """Return the record of a commit that is made now; see `write`.

    Args:
        summary: the totals of the step.
        origin: where it comes from.
        contents: what else the record lists.
        without_tensors: why no payloads of tensors are stored, if so.
        previous: the generations that were committed before, the oldest first.
        now: the time of the commit.
    """
    return CommitRecord(
        format_version=format_version_of(
            without_tensors, has_views=contents.has_views, has_pool=bool(contents.pool)
        ),
        without_tensors=without_tensors,
        rank=summary.key.rank,
        step=summary.key.step,
        fingerprint=summary.fingerprint,
        committed_at=(now or datetime.now(UTC)).isoformat(timespec="milliseconds"),
        source=Origin(**{name: to_text(value) for name, value in asdict(origin).items()}),
        summary=totals_of(summary),
        software=_software(),
        previous=tuple(name for name in dict.fromkeys(previous) if name != summary.fingerprint),
        nets=contents.nets,
        graphs=contents.graphs,
        stored=dict(contents.stored),
        pool=dict(contents.pool),
        checksums=dict(contents.checksums),
        problems=contents.problems,
        poison=contents.poison,
    )


def format_version_of(without: WithoutTensors | None, *, has_views: bool, has_pool: bool = False) -> int:
    """Return the format version of a commit: the oldest that reads all of it."""
    if has_pool:
        return metadata.POOL_FORMAT_VERSION
    if has_views:
        return metadata.VIEWS_FORMAT_VERSION
    return metadata.FORMAT_VERSION if without is None else metadata.WITHOUT_TENSORS_FORMAT_VERSION


@cache
def _software() -> dict[str, str]:
    return {name: version(name) for name in _SOFTWARE}


_LEAF_BEGIN = b'{"zarr_format":3,"node_type":"group","attributes":{'
_CHECKSUM_NAME = b'"dump_ingest_crc32c":"'
_CHECKSUM_DIGITS, _CHECKSUM_END = 8, b'",'
_END_OF_CHECKSUM = len(_LEAF_BEGIN) + len(_CHECKSUM_NAME) + _CHECKSUM_DIGITS + len(_CHECKSUM_END)


def with_checksum(document: bytes) -> bytes:
    """Return the `zarr.json` of a step with its checksum.

    Raises:
        ValueError: it does not begin as `metadata.encode` writes it.
    """
    if not document.startswith(_LEAF_BEGIN):
        raise ValueError("this is not the metadata of a step")
    return _LEAF_BEGIN + _attribute_for(document) + document[len(_LEAF_BEGIN) :]


def without_checksum(data: bytes) -> bytes:
    """Return a `zarr.json` as it was before it got its checksum; as it is if it has none."""
    return _LEAF_BEGIN + data[_END_OF_CHECKSUM:] if data.startswith(_LEAF_BEGIN + _CHECKSUM_NAME) else data


def has_wrong_checksum(data: bytes) -> bool:
    """Return whether a `zarr.json` has a checksum that is not its own."""
    if not data.startswith(_LEAF_BEGIN + _CHECKSUM_NAME):
        return False
    return data[len(_LEAF_BEGIN) : _END_OF_CHECKSUM] != _attribute_for(without_checksum(data))


def _attribute_for(document: bytes) -> bytes:
    return b"%b%08x%b" % (_CHECKSUM_NAME, google_crc32c.value(document), _CHECKSUM_END)


#: Where the metadata of the nodes begins in what `metadata.leaf` makes.
_NODES_BEGIN = b'"consolidated_metadata"'
#: Stands for the name of the generation. JSON has no such byte.
_STAND_IN = b"\0"


@dataclass(frozen=True, slots=True)
class CompactLeaf:
    """The content of one `zarr.json`, byte for byte: equal content, equal values."""

    before_nodes: bytes
    """All that precedes the metadata of the nodes: the commit record."""
    packed_nodes: bytes
    """The rest, compressed by zlib, with `_STAND_IN` for each occurrence of `name`."""
    name: bytes
    """Of the generation."""

    @classmethod
    def of(cls, data: bytes, fingerprint: str) -> CompactLeaf:
        """Pack a checked `zarr.json`, which is the commit of this generation."""
        start = max(data.find(_NODES_BEGIN), 0)
        nodes, name = data[start:], fingerprint.encode()
        if _STAND_IN in nodes:  # damage that JSON decoders pass over
            name = _STAND_IN
        return cls(data[:start], _compressed(nodes.replace(name, _STAND_IN)), name)

    @property
    def data(self) -> bytes:
        """The `zarr.json`."""
        return self.before_nodes + zlib.decompress(self.packed_nodes).replace(_STAND_IN, self.name)


@lru_cache(maxsize=64)
def _compressed(nodes: bytes) -> bytes:
    return zlib.compress(nodes, 1)


class Nodes(Mapping[str, metadata.Document]):
    """The metadata of the nodes of a generation, by path in it; unpacked when it is needed."""

    __slots__ = ("_leaf",)

    def __init__(self, leaf: CompactLeaf) -> None:
        """Hold a checked leaf."""
        self._leaf = leaf

    def __getitem__(self, path: str) -> metadata.Document:
        return _unpacked(self._leaf)[path]

    def __iter__(self) -> Iterator[str]:
        return iter(_unpacked(self._leaf))

    def __len__(self) -> int:
        return len(_unpacked(self._leaf))

    def __reduce__(self) -> tuple[type[Nodes], tuple[CompactLeaf]]:
        return Nodes, (self._leaf,)


@lru_cache(maxsize=64)
def _unpacked(leaf: CompactLeaf) -> dict[str, metadata.Document]:
    return decode_nodes(leaf.data)
