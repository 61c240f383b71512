"""Values that pass between the planner and the Dask tasks, frozen and picklable; and events of the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from workers.arrays.arrangements import StridedView
from workers.arrays.marginals import MarginalScope
from workers.dump.formats.header import TensorHeader
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile, StepKey
from workers.rules.values import RuleSet
from workers.store.model import ArraySpec, Origin, RowKind, StoreAddress
from workers.store.packed.pool import PooledArray

if TYPE_CHECKING:  # with them come the codecs, 0.05 s, which the start of a worker does without
    from workers.store.sketches import StepMarginals
    from workers.tasks.envelopes import Envelopes
from workers.events import Event
from workers.store.model import CommitSummary

#: Incremented whenever the same source would become other rows or values; part of every fingerprint. Another
#: encoding of chunks does not count: steps that are stored stay as they are.
CONVERTER_VERSION = 2


class Entry(NamedTuple):
    """One row of the index of a step: a tensor, or a file that holds none."""

    source: SourceFile
    kind: RowKind
    name: TensorName
    header: TensorHeader | None = None
    envelope_digest: int | None = None
    """Digest of the envelope of the payload, if the header does not have it: conversion reads it then."""
    problem: str = ""
    readable: bool = True
    """Whether its bytes can be read. A file that cannot be read is named in the index, and nothing more."""
    record: str = ""
    """The content of an overflow record, as JSON text."""

    @property
    def array(self) -> str:
        """The packed array that holds the payload, relative to the generation; "" for none."""
        if self.kind is RowKind.STATISTICS:
            return ""
        header = None if self.kind is RowKind.PART else self.header
        return f"tensors/{header.element.array}" if header else "files"

    @property
    def offset(self) -> int:
        """The byte at which the payload begins in the file."""
        return self.header.offset if self.header else 0

    @property
    def nbytes(self) -> int:
        """Payload bytes in the file."""
        if self.kind is RowKind.STATISTICS:
            return 0
        return self.header.nbytes if self.header else self.source.size

    @property
    def read_nbytes(self) -> int:
        """Bytes of the file to read for this row: the payload, and the header before it."""
        if self.header is None:
            return self.nbytes
        lead_nbytes = len(self.header.lead) if self.envelope_digest is None else self.header.offset
        return self.nbytes + lead_nbytes

    @property
    def view(self) -> StridedView | None:
        """How its elements are picked from the file, if they are not a part of it of their own."""
        return self.header.view if self.header else None


def _no_entries() -> npt.NDArray[np.int64]:
    return np.zeros((0, 0), np.int64)


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one packed array that one task writes. It begins on a shard boundary."""

    array: ArraySpec
    first_shard: int
    rows: tuple[int, ...]
    """Rows of the index, in the order in which their payloads are packed."""
    pooled: bool = False
    """Whether it is packed into the pool of the step: into one array, or several if that would be too large.
    Then `array` says how, its shard is the most that an array holds, and `first_shard` means nothing."""


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
    nbytes: int = 0
    """Bytes that will be read."""
    keep_device_layout: bool = False
    """Whether tensors stay in the layout of the accelerator."""
    without_tensors: bool = False
    """Whether payloads of tensors are read for their digests and statistics only, and not stored."""
    sketches: bool = False
    """Whether histograms of tensors are computed, and digests of their blocks."""
    marginals: MarginalScope = MarginalScope.ALL
    """The tensors whose marginals are stored, too, if `sketches` is set."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of the index, segment by segment."""
        return tuple(row for segment in self.segments for row in segment.rows)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything that is needed to convert and commit one step: its content, and the share of each task."""

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
    """What is wrong with the step as a whole, besides the problems of its entries."""
    reported: Mapping[int, ReportedStatistics] = field(repr=False, default_factory=dict)
    """By row: the statistics that the dump itself reports."""
    poison: tuple[SourceFile, ...] = field(repr=False, default=())
    """Files that kill the process that reads them. They are quarantined."""
    rules: RuleSet | None = field(repr=False, default=None)
    """The rules to evaluate when the step is committed; None for none. Not part of the fingerprint."""
    replaces: str | None = None
    """The generation that was committed when this was planned, or "" for none: the new commit replaces that
    generation and no other. None: it replaces any."""
    without_tensors: str = ""
    """Why the payloads of its tensors are not stored; "" if they are."""
    sketches: bool = False
    """Whether histograms of its tensors are stored, and digests of their blocks. They are not part of the
    fingerprint: they add to a generation."""
    marginals: MarginalScope = MarginalScope.ALL
    """The tensors whose marginals are stored, too, if `sketches` is set."""

    def with_sketches(self, marginals: MarginalScope = MarginalScope.ALL) -> StepPlan:
        """Return the plan that also stores sketches, with marginals of these tensors."""
        jobs = tuple(replace(job, sketches=True, marginals=marginals) for job in self.jobs)
        return replace(self, sketches=True, marginals=marginals, jobs=jobs)


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Rows whose payloads are in one array of the pool."""

    path: str
    """Of the array, relative to the root of the store."""
    array: PooledArray
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a finished `ShardJob` reports. Columns are aligned with `rows`."""

    number: int
    rows: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    """First element in the packed array, shape (n,); -1 if nothing could be read."""
    digests: npt.NDArray[np.uint8]
    """Shape (n, 16)."""
    statistics: npt.NDArray[np.float64]
    """Shape (n, len(statistics.FIELDS)); rows that are not tensors are NaN."""
    nbytes: npt.NDArray[np.int64]
    """Payload bytes as stored, shape (n,): less than in the file if padding of a device was removed."""
    in_device_layout: npt.NDArray[np.bool_]
    """Whether the stored payload is still in device layout, shape (n,)."""
    ends: dict[str, int]
    """For each packed array, the element after the last one that was written."""
    stored: dict[str, int]
    """For each written shard (key relative to the generation), its size in bytes."""
    bytes_read: int
    duplicates: int
    """Tensors of which the job had already stored one with the same type and digest."""
    duplicate_bytes: int
    """Payload bytes of the duplicates."""
    seconds: float
    histograms: npt.NDArray[np.int64] = field(default_factory=_no_entries)
    """Entries of `workers.store.sketches.TABLE`, for the tensors that are not duplicates."""
    block_digests: npt.NDArray[np.int64] = field(default_factory=_no_entries)
    """Entries of `workers.store.sketches.TABLE`, for the large tensors among these."""
    marginals: StepMarginals | None = None
    """The marginals of the same tensors; None if none were requested."""
    envelopes: Envelopes | None = None
    """Those of which the plan has only the digest; None if there are none."""
    pooled: tuple[PooledRows, ...] = ()
    """What was packed into the pool; `stored` and `ends` do not have it."""


@dataclass(frozen=True, slots=True)
class ConvertStarted(Event):
    """A worker began to convert a job."""

    job: ShardJob


@dataclass(frozen=True, slots=True)
class Converted(Event):
    """A worker wrote all shards of a job."""

    job: ShardJob
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class ConvertFailed(Event):
    """A worker gave up on a job."""

    job: ShardJob
    error: BaseException


@dataclass(frozen=True, slots=True)
class Published(Event):
    """A worker committed a step."""

    summary: CommitSummary
    seconds: float
