"""Values that pass between the planner, the Dask tasks and the store. All frozen, all picklable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workers.arrays.statistics import UNKNOWN, Statistics
from workers.dump.formats.header import TensorHeader
from workers.positional import Positional
from workers.rules.values import WORSE_THAN_INFO, Finding, RuleSet

#: Raised whenever the same source would be stored differently; part of every fingerprint.
CONVERTER_VERSION = 2

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StepKey:
    """One rank's dump of one step; `step` None is what the rank dumped outside of any step."""

    rank: int
    step: int | None

    @property
    def path(self) -> str:
        """The leaf group of the store that belongs to this key."""
        return f"rank_{self.rank}/" + ("run" if self.step is None else f"step_{self.step}")

    @property
    def order(self) -> tuple[int, int]:
        """A sort key: by step, then rank; what belongs to no step comes first."""
        return (-1 if self.step is None else self.step, self.rank)

    def __str__(self) -> str:
        return f"rank {self.rank} " + ("run files" if self.step is None else f"step {self.step}")


@dataclass(frozen=True, slots=True)
class SourceFile(Positional):
    """One file of a dump as a listing shows it; `path` is relative to the dump, with `/`."""

    path: str
    size: int
    mtime_ns: int
    writable: bool = field(default=True, compare=False)
    """Whether its owner may write it: MindSpore takes that away when it has closed the file."""


class Kind(StrEnum):
    """What a row of the index is."""

    TENSOR = "tensor"
    STATISTICS = "statistics"
    """A tensor of which only statistics were dumped: they stand in a table that is kept as a file."""
    OVERFLOW = "overflow"
    """What the hardware wrote down about an operator that overflowed."""
    FILE = "file"
    """Kept as it is: IR, execution order, CSV, JSON, anything with an unknown name."""
    QUARANTINED = "quarantined"
    """Claims to be a tensor and is not; its raw bytes are kept where they could be read."""


class TensorName(NamedTuple):
    """What the name and the place of a dump file tell about its tensor. -1 and "" where they do not.

    A tuple, for a step has thousands, and a frozen dataclass takes four times as long to make.
    """

    net: str = ""
    graph: str = ""
    op_type: str = ""
    op_name: str = ""
    io: str = ""
    slot: int = -1
    occurrence: int = 0
    """Number of this dump among those of the same op and slot in one step, in order of time (loops)."""
    task: int = -1
    stream: int = -1
    timestamp: int = -1
    """Microseconds since the epoch, by the writer's clock."""
    format: str = ""
    declared_dtype: str = ""
    """The type before the writer converted it, as the dump spells it."""
    full_name: str = ""
    """The name of the operator as the framework spells it, where the dump says so."""
    sequence: int = -1
    """Its place in the list that the dump itself keeps, where no time is known."""


@dataclass(frozen=True, slots=True)
class Reported(Positional):
    """Statistics of one tensor as the dump system wrote them down."""

    source: str
    """The file that says so."""
    name: TensorName
    dtype: str
    """As the file spells it."""
    shape: tuple[int, ...]
    statistics: Statistics = UNKNOWN
    """NaN in each field that the file does not give, or gives by another definition."""
    tensor: str = ""
    """Path of the file that holds the tensor, where the report names it; else it is found by `name`."""
    checksum: str = ""
    """As the file gives it, with its kind: `md5:...`, `crc32:...`."""
    digits: int = 6
    """How many significant decimal digits its numbers have."""


class Entry(NamedTuple):
    """One row of the index of a step: a tensor, or a file that holds none."""

    source: SourceFile
    kind: Kind
    name: TensorName
    header: TensorHeader | None = None
    problem: str = ""
    readable: bool = True
    """Whether the disk gives its bytes; what it does not give is named in the index, and nothing more."""
    record: str = ""
    """JSON text of what was read out of an overflow record."""

    @property
    def array(self) -> str:
        """The packed array that takes the payload, relative to the generation; "" where there is none."""
        return array_of(self.kind, self.header)

    @property
    def offset(self) -> int:
        """Where the payload begins in the file, in bytes."""
        return self.header.offset if self.header else 0

    @property
    def nbytes(self) -> int:
        """Payload bytes in the file."""
        return payload_nbytes(self.kind, self.header, self.source.size)

    @property
    def read_nbytes(self) -> int:
        """Bytes to read of the file for this row: the payload, and what stands before it."""
        return self.nbytes + (len(self.header.lead) if self.header else 0)


def array_of(kind: Kind, header: TensorHeader | None) -> str:
    """Return the packed array that takes a payload, relative to the generation; "" where there is none."""
    if kind is Kind.STATISTICS:
        return ""
    return f"tensors/{header.element.array}" if header else "files"


def payload_nbytes(kind: Kind, header: TensorHeader | None, file_nbytes: int) -> int:
    """Return the payload bytes of a row in its file."""
    if kind is Kind.STATISTICS:
        return 0
    return header.nbytes if header else file_nbytes


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The grid of one packed 1-D array."""

    path: str
    data_type: str
    itemsize: int
    big_endian: bool
    chunk: int
    """Elements per inner chunk."""
    chunks_per_shard: int

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one inner chunk before compression."""
        return self.chunk * self.itemsize

    @property
    def shard(self) -> int:
        """Elements per shard."""
        return self.chunk * self.chunks_per_shard

    @property
    def shard_nbytes(self) -> int:
        """Bytes of one shard before compression."""
        return self.shard * self.itemsize

    def shards_for(self, nbytes: int) -> int:
        """How many shards hold `nbytes` payload bytes."""
        return math.ceil(nbytes / self.shard_nbytes)


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one packed array that one task fills: it begins on a shard boundary."""

    array: ArraySpec
    first_shard: int
    rows: tuple[int, ...]
    """Rows of the index, in the order in which their payloads are packed."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is. Holds no credentials: those come from the environment of each process."""

    url: str
    options: str = "{}"
    """fsspec storage options as JSON text, so that an address can be hashed."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The work of one Dask task: read these files once, write these whole shards."""

    key: StepKey
    number: int
    fingerprint: str
    root: str
    store: StoreAddress
    segments: tuple[Segment, ...]
    entries: dict[int, Entry]
    """By row, in the order of `rows`."""
    keep_device_layout: bool = False
    """Whether tensors stay in the layout of the accelerator."""
    without_tensors: bool = False
    """Whether the payloads of tensors are read for digests and statistics only, and not stored."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of the index, segment by segment."""
        return tuple(row for segment in self.segments for row in segment.rows)

    def of(self, entries: Sequence[Entry]) -> ShardJob:
        """Return the job with its part of the entries of a step."""
        return replace(self, entries={row: entries[row] for row in self.rows})

    @property
    def nbytes(self) -> int:
        """Bytes that will be read."""
        return sum(entry.read_nbytes for entry in self.entries.values())


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a step comes from; part of its commit record."""

    layout: str
    host: str
    root: str
    rank_from: str = "path"
    """What gave the rank: the path, the user, a rank table, or the id of the device or process."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything needed to convert and commit one step: what is in it and which task does what."""

    key: StepKey
    fingerprint: str
    origin: Origin
    store: StoreAddress
    nbytes: int
    """Bytes of all source files."""
    entries: Sequence[Entry]
    """The rows of the index; in a worker by columns, see `workers.tasks.columns`."""
    arrays: tuple[ArraySpec, ...]
    jobs: tuple[ShardJob, ...] = field(repr=False, default=())
    problems: tuple[str, ...] = ()
    """What is wrong with the step as a whole, beside the problems of its entries."""
    reported: Mapping[int, Reported] = field(repr=False, default_factory=dict)
    """By row: the statistics that the dump itself gives."""
    poison: tuple[SourceFile, ...] = field(repr=False, default=())
    """Files that kill the process that reads them; they are among the quarantined."""
    rules: RuleSet | None = field(repr=False, default=None)
    """What to look for when it is committed; None for nothing. No part of the fingerprint."""
    replaces: str | None = None
    """The generation that was committed when this was planned, "" for none: its commit takes the place of
    that one and of no other. None: of whatever is there."""
    without_tensors: str = ""
    """Why the payloads of its tensors are not stored; "" where they are."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one finished `ShardJob` reports. Columns are aligned with `rows`."""

    number: int
    rows: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    """First element in the packed array, shape (n,); -1 where nothing could be read."""
    digests: npt.NDArray[np.uint8]
    """Shape (n, 16)."""
    statistics: npt.NDArray[np.float64]
    """Shape (n, len(statistics.FIELDS)); NaN rows for what is no tensor."""
    nbytes: npt.NDArray[np.int64]
    """Payload bytes as they are stored, shape (n,): less than in the file without the padding of a device."""
    in_device_layout: npt.NDArray[np.bool_]
    """Whether what is stored is still in device layout, shape (n,)."""
    ends: dict[str, int]
    """For each packed array, one past the last element written."""
    stored: dict[str, int]
    """For each shard written (key relative to the generation), its size in bytes."""
    bytes_read: int
    duplicates: int
    """Tensors that were already there under the same type and digest."""
    duplicate_bytes: int
    """The payload bytes of those."""
    seconds: float


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """The totals of one committed step; also part of its commit record."""

    key: StepKey
    fingerprint: str
    status: str
    """`complete`, or `partial` when something is quarantined or missing."""
    tensors: int
    files: int
    quarantined: int
    overflows: int
    """Overflow records."""
    statistics_only: int
    """Tensors of which only statistics were dumped; they count neither as tensors nor as files."""
    disagreements: int
    """Tensors whose statistics, as the dump gives them, differ from the computed ones."""
    unparsed: int
    """Files in a step whose name is not understood; kept as files."""
    duplicates: int
    """Tensors whose payload is that of another tensor of the step."""
    raw_bytes: int
    stored_bytes: int
    """Of shards and tables; metadata documents are not counted."""
    objects: int
    """Objects written for this step, metadata documents included."""
    nan_count: int
    pos_inf_count: int
    neg_inf_count: int
    nan_tensors: int
    pos_inf_tensors: int
    neg_inf_tensors: int
    anomalous_tensors: int
    """Tensors with at least one NaN or infinity."""
    rules: str = ""
    """Which set of rules was evaluated: its digest; "" where none was, as in steps of earlier versions."""
    findings: Mapping[str, int] = field(default_factory=dict)
    """By rule that found something: how much, what was not stored for its limit included."""
    severities: Mapping[str, str] = field(default_factory=dict)
    """By the same rules: info, warning or critical."""
    failed_rules: Mapping[str, str] = field(default_factory=dict)
    """By rule that could not be evaluated: why. The step stands without it."""
    first_findings: tuple[Finding, ...] = field(default=(), compare=False)
    """The worst of them, a few: for logs and messages. Not in the commit record, the tables have them all."""

    @property
    def is_anomalous(self) -> bool:
        """Whether it counts NaN, Inf, an overflow record, or a finding of severity warning or worse."""
        severities = {name for name, count in self.findings_by_severity.items() if count}
        return bool(self.anomalous_tensors or self.overflows or severities & WORSE_THAN_INFO)

    @property
    def findings_by_severity(self) -> dict[str, int]:
        """How much was found, by severity."""
        totals: dict[str, int] = {}
        for rule, count in self.findings.items():
            severity = self.severities.get(rule, "")
            totals[severity] = totals.get(severity, 0) + count
        return totals


@dataclass(frozen=True, slots=True)
class Grid:
    """How payloads are cut into chunks, shards and tasks; part of every fingerprint."""

    chunk_nbytes: int = MIB
    """Inner chunks: what a small read costs."""
    shard_nbytes: int = 128 * MIB
    """Shards before compression: what one object holds; but into a directory, a task keeps it in memory."""
    job_nbytes: int = 128 * MIB
    """What one task reads, unless one tensor or one set of possible copies is larger."""
    keep_device_layout: bool = False
    """Whether tensors stay in the layout of the accelerator, padding and all."""
