"""Values of the store: names, address and grid, kinds of rows, findings, and the totals of a commit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from workers.model import MIB, Positional, StepKey

#: The largest number that a counter of 64 bits holds.
LARGEST_COUNT = 2**63 - 1
#: What such a counter holds, checked when it is decoded.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
#: From the mildest to the worst.
SEVERITIES = ("info", "warning", "critical")
WORSE_THAN_INFO = frozenset(SEVERITIES[1:])

#: How long a request to a store may go on without progress, unless somebody says otherwise, in seconds.
STORE_TIMEOUT_S = 60.0
#: What to do about a URL that names no place, or has an unknown protocol.
PROTOCOL_HINT = "Use a directory, or a URL that fsspec knows, such as s3://bucket/prefix."


class RowKind(StrEnum):
    """What a row of the index is."""

    TENSOR = "tensor"
    STATISTICS = "statistics"
    """A tensor of which only statistics were dumped, in a table that is kept as a file."""
    OVERFLOW = "overflow"
    """What the hardware recorded about an operator that overflowed."""
    FILE = "file"
    """Kept as it is: IR, execution order, CSV, JSON, anything with an unknown name."""
    PART = "part"
    """Bytes of a file of tensors that belong to none of them: a storage of which only views were saved."""
    QUARANTINED = "quarantined"
    """Claims to be a tensor and is not; its raw bytes are kept if they could be read."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is. Without credentials: those come from the environment of each process."""

    url: str
    options: str = "{}"
    """fsspec storage options as JSON text, so that an address can be hashed."""
    timeout_s: float = STORE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Grid:
    """How payloads are cut into chunks, shards and tasks; part of every fingerprint."""

    chunk_nbytes: int = MIB
    """Inner chunks: what a small read costs."""
    shard_nbytes: int = 128 * MIB
    """Shards before compression: one object each. A task keeps one in memory, except for a directory."""
    job_nbytes: int = 128 * MIB
    """What one task reads, unless one tensor or one set of possible copies is larger."""
    keep_device_layout: bool = False
    """Whether tensors stay in the layout of the accelerator, padding and all."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The grid of one packed 1-D array."""

    path: str
    data_type: str
    itemsize: int
    big_endian: bool
    chunk: int
    chunks_per_shard: int
    dense: str = ""
    """How its chunks are shuffled for zstd, `shuffle` or `bitshuffle`; "" for lz4, which steps begin with."""
    sparse: str = ""
    """How chunks with many zeros are encoded: a rule of `workers.store.packed.chunks`; "" if they are
    encoded like all other chunks."""

    @property
    def typesize(self) -> int:
        """Bytes of a number that is shuffled as a whole: complex128 is two float64."""
        return self.itemsize // 2 if self.data_type.startswith("complex") else self.itemsize

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
        """Return how many shards hold `nbytes` payload bytes."""
        return math.ceil(nbytes / self.shard_nbytes)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a step comes from; part of its commit record."""

    layout: str
    host: str
    root: str
    rank_from: str = "path"
    """What the rank was taken from: the path, the user, a rank table, or the id of the device or process."""


@dataclass(frozen=True, slots=True)
class Finding(Positional):
    """What a rule found."""

    rule: str
    severity: str
    rank: int | None
    """None if it is not about a single rank."""
    step: int
    row: int
    """Of the index of that step; -1 if it is not about a single tensor."""
    graph: str
    name: str
    """Of the tensor; "" if it is not about one."""
    value: float
    """What was compared with the threshold; NaN if nothing was."""
    threshold: float
    reason: str
    cause: str = ""
    """What is the matter, if values of the run show it or make it likely."""
    level: str = "open"
    """How certain the cause is: `shown`, `likely` or `open`."""
    since: int | None = None
    """The step in which it began, if that is an earlier one."""

    @property
    def order(self) -> tuple[int, int, int, int, str]:
        """A sort key: the worst first, then the earliest."""
        rank = -1 if self.rank is None else self.rank
        return (-SEVERITIES.index(self.severity), self.step, rank, self.row, self.rule)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a flat dictionary of plain values."""
        return {name: getattr(self, name) for name in self.__match_args__}


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What a set of rules found in one step: of one rank, or of all."""

    rules: str
    """The digest of the set."""
    findings: tuple[Finding, ...] = ()
    """The stored ones: of each rule at most its limit. The worst first, then in order of execution."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """By rule that found something: how many findings, including those that are not stored."""
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def severities(self) -> dict[str, str]:
        """The severity of each rule that found something."""
        return {finding.rule: finding.severity for finding in self.findings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the record of a commit counts and names; in the order in which it is written."""

    status: Literal["complete", "partial"]
    """`partial` when something is quarantined or missing."""
    tensors: Count
    files: Count
    quarantined: Count
    overflows: Count
    """Overflow records."""
    statistics_only: Count
    """Tensors of which only statistics were dumped; they count neither as tensors nor as files."""
    disagreements: Count
    """Tensors whose statistics, as the dump gives them, differ from the computed ones."""
    unparsed: Count
    """Files in a step whose name is not understood; kept as files."""
    duplicates: Count
    """Tensors with the same payload as another tensor of the step."""
    raw_bytes: Count
    stored_bytes: Count
    """Of shards and tables, those in the pool included; metadata documents are not counted."""
    objects: Count
    """Objects that this step consists of, metadata documents and those in the pool included."""
    nan_count: Count
    pos_inf_count: Count
    neg_inf_count: Count
    nan_tensors: Count
    pos_inf_tensors: Count
    neg_inf_tensors: Count
    anomalous_tensors: Count
    """Tensors with at least one NaN or infinity."""
    rules: str = ""
    """Which set of rules was evaluated: its digest; "" if none was."""
    findings: Mapping[str, Count] = field(default_factory=dict)
    """By rule that found something: how many findings, including those that are not stored."""
    severities: Mapping[str, str] = field(default_factory=dict)
    """By the same rules: info, warning or critical."""
    failed_rules: Mapping[str, str] = field(default_factory=dict)
    """By rule that could not be evaluated: why. The step is committed without it."""
    skipped: Count = 0
    """Problems that no row of the index has, such as a symbolic link."""
    tensor_problems: Count = 0
    """Tensors with another problem than disagreeing statistics, such as an unknown type."""

    @property
    def problems(self) -> int:
        """How many problems `ls --problems` lists."""
        of_files = self.quarantined + self.unparsed + self.skipped
        return of_files + self.disagreements + self.tensor_problems

    @property
    def is_anomalous(self) -> bool:
        """Whether it counts NaN, Inf, an overflow record, or a finding of severity warning or worse."""
        severities = {name for name, count in self.findings_by_severity.items() if count}
        return bool(self.anomalous_tensors or self.overflows or severities & WORSE_THAN_INFO)

    @property
    def findings_by_severity(self) -> dict[str, int]:
        """The number of findings by severity."""
        totals: dict[str, int] = {}
        for rule, count in self.findings.items():
            severity = self.severities.get(rule, "")
            totals[severity] = totals.get(severity, 0) + count
        return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSummary(Totals):
    """The totals of one committed step, and which step that is."""

    key: StepKey
    fingerprint: str
    first_findings: tuple[Finding, ...] = field(default=(), compare=False)
    """The worst of them, a few: for logs and messages. Not in the commit record; the tables have them all."""


#: No other name stands for a number, such as `01`, and none for one that int64 does not hold.
_NUMBER = "(0|[1-9][0-9]{0,17})"
_RANK, _STEP = re.compile(f"rank_{_NUMBER}"), re.compile(f"step_{_NUMBER}")


def rank_named(name: str) -> int | None:
    """Return the rank whose group has this name; None for any other name."""
    match = _RANK.fullmatch(name)
    return None if match is None else int(match[1])


def step_named(name: str) -> int | None:
    """Return the step whose group has this name in the group of its rank; None for any other name."""
    match = _STEP.fullmatch(name)
    return None if match is None else int(match[1])


def tensor_name(op_type: str, op_name: str, io: str, slot: int, occurrence: int = 0) -> str:
    """Return the name of a tensor: operator type, operator name, `slot_name`.

    >>> tensor_name("MatMul", "net_MatMul-op0", "output", 0, 2)
    'MatMul.net_MatMul-op0.output.0#2'
    """
    return f"{op_type}.{op_name}.{slot_name(io, slot, occurrence)}"


def slot_name(io: str, slot: int, occurrence: int = 0) -> str:
    """Return the name of a tensor among the tensors of its operator.

    Args:
        io: `input`, `output`, or what else the dump calls it.
        slot: which input or output, from 0.
        occurrence: number of the dump among the dumps of the same slot in one step; 0 is left out.
    """
    return f"{io}.{slot}#{occurrence}" if occurrence else f"{io}.{slot}"
