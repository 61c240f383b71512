"""The statistics of one entry while it is converted, and what entries of equal bytes have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workers.arrays import device_format, statistics
from workers.arrays.arrangements import StridedView, elements_of
from workers.arrays.digest import SMALL_NBYTES, RunningBlockDigests
from workers.arrays.dtypes import ElementType, unpack
from workers.arrays.histogram import NO_BINS, has_histogram
from workers.arrays.marginals import (
    LEAST_ELEMENTS,
    NO_MARGINALS,
    MarginalScope,
    MarginalTable,
    running_marginals,
)
from workers.arrays.statistics import RunningStatistics, has_statistics, takes_many
from workers.dump.source import OpenFile
from workers.errors import SourceChanged
from workers.model import MIB
from workers.store.model import RowKind
from workers.store.sketches import BLOCK_TABLE, HISTOGRAM_TABLE, EntryTable, StepMarginals
from workers.tasks.model import Entry

#: Up to this many bytes, a tensor in device layout is held in memory as a whole and converted. A larger one
#: stays in device layout, because an export could not convert it back in bounded memory. Its statistics come
#: from reading it a second time, slab by slab.
MAX_CONVERTED_BYTES = 256 * MIB


def to_convert(entry: Entry) -> bool:
    """Return whether an entry is a tensor in device layout that is small enough to be converted."""
    header = entry.header
    return header is not None and header.device is not None and header.nbytes <= MAX_CONVERTED_BYTES


def is_counted(entry: Entry) -> bool:
    """Return whether an entry has statistics, provided that its type has any.

    Overflow records have none. Nor have tensors that are described but have no bytes: statistics that the
        dump reports for them must not be compared with the statistics of no elements.
    """
    header = entry.header
    is_absent = header is not None and header.problem != "" and not header.nbytes
    return entry.kind is RowKind.TENSOR and header is not None and not is_absent


def small_dtype(entry: Entry) -> np.dtype[Any] | None:
    """Return the type of a tensor that `Summaries.keep_many` takes; None for any other."""
    header = entry.header
    if header is None or header.device or header.view or not is_counted(entry):
        return None
    is_small = 0 < header.size < LEAST_ELEMENTS and has_statistics(header.element)
    dtype = header.element.to_numpy()
    return dtype if is_small and not header.element.is_packed and takes_many(dtype) else None


def meaning(entry: Entry) -> object:
    """Return everything besides its bytes that the statistics of an entry depend on."""
    header = entry.header
    if header is None:
        return ""
    if not is_counted(entry):
        return entry.kind, header.element.name
    return (header.element.name, header.device, header.shape) if header.device else header.element.name


class Summary(NamedTuple):
    """What is kept of the values of an entry."""

    statistics: tuple[float, ...]
    """In the order of `workers.arrays.statistics.FIELDS`."""
    histogram: npt.NDArray[np.int64]
    """(bin, 3); see `workers.arrays.histogram.FIELDS`. Empty if there is none."""
    blocks: npt.NDArray[np.int64]
    """(block, 1): see `workers.arrays.digest`. Empty for a payload of one block."""
    marginals: MarginalTable
    """See `workers.arrays.marginals`."""


UNKNOWN = Summary(statistics.UNKNOWN.as_row(), NO_BINS, np.zeros((0, 1), np.int64), NO_MARGINALS)


class Summaries:
    """What is kept of the values of the entries of a job, by their places in it."""

    def __init__(self, entries: int, *, sketches: bool) -> None:
        self._sketches = sketches
        self._statistics = np.full((entries, len(statistics.FIELDS)), np.nan)
        self._bins, self._blocks = _Gathered(), _Gathered()
        self._marginals: dict[int, MarginalTable] = {}
        self._many: list[tuple[list[int], npt.NDArray[np.float64]]] = []
        """Places, and the states of the tensors there that have no row of statistics yet."""
        self._twins: dict[int, int] = {}
        """By place of a copy, the place of its original."""

    def keep(self, place: int, summary: Summary) -> None:
        """Keep what was found out about an entry."""
        self._statistics[place] = summary.statistics
        if len(summary.histogram):
            self._bins.add([place], [len(summary.histogram)], summary.histogram)
        if len(summary.blocks) > 1:
            self._blocks.add([place], [len(summary.blocks)], summary.blocks)
        if summary.marginals.axes:
            self._marginals[place] = summary.marginals

    def keep_many(self, places: list[int], values: npt.NDArray[Any], sizes: Sequence[int]) -> None:
        """Summarise tensors that have a `small_dtype`; see `summarise_many`."""
        states, bins, counts = statistics.summarise_many(values, sizes)
        self._many.append((places, states))
        if self._sketches:
            self._bins.add(places, counts.tolist(), bins)

    def share(self, place: int, twin: int) -> None:
        """Give a copy the statistics of the original, whose sketches are its own, too."""
        self._twins[place] = twin

    def columns(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the columns of a receipt, by name; `rows` are the rows of the index, by place."""
        if self._many:
            places, states = map(np.concatenate, zip(*self._many, strict=True))
            self._statistics[places] = statistics.rows_of(states)
        self._statistics[list(self._twins)] = self._statistics[list(self._twins.values())]
        return {
            "statistics": self._statistics,
            "histograms": self._bins.entries(HISTOGRAM_TABLE, rows),
            "block_digests": self._blocks.entries(BLOCK_TABLE, rows),
            "marginals": StepMarginals.of_places(rows, self._marginals),
        }


class _Gathered:
    def __init__(self) -> None:
        self._places: list[int] = []
        self._counts: list[int] = []
        self._parts: list[npt.NDArray[np.int64]] = []

    def add(self, places: list[int], counts: list[int], part: npt.NDArray[np.int64]) -> None:
        self._places += places
        self._counts += counts
        self._parts.append(part)

    def entries(self, table: EntryTable, rows: Sequence[int]) -> npt.NDArray[np.int64]:
        return table.gathered([rows[place] for place in self._places], self._counts, self._parts)


class EntryStatistics:
    """The running statistics of an entry; unknown unless it is a tensor of numbers."""

    def __init__(
        self,
        entry: Entry,
        limit_nbytes: int,
        *,
        sketches: bool = False,
        marginals: MarginalScope = MarginalScope.ALL,
    ) -> None:
        """Prepare for an entry. If it is in device layout, each slab takes up to `limit_nbytes`.

        With `sketches`, its histogram and the digests of its blocks are computed in the same pass, and
        its marginals if it is in the scope `marginals`.
        """
        self._header = header = entry.header
        self._left = 0
        self._summary: Summary | None = None
        self._slabs: Iterator[device_format.Slab] | None = None
        self._running: RunningStatistics | None = None
        if header is not None:
            self._left = header.size
            countable = is_counted(entry) and has_statistics(header.element)
            if countable and header.device is not None and not to_convert(entry):
                # A device layout has padding, whose elements do not count.
                self._slabs = device_format.slabs(header.device, header.shape, header.element, limit_nbytes)
                countable = self._slabs is not None
            if countable:
                with_histogram, summed = sketches and has_histogram(header.element), None
                if with_histogram and self._slabs is None:
                    order = header.fortran_order
                    summed = running_marginals(
                        header.element, header.shape, fortran_order=order, scope=marginals
                    )
                self._running = RunningStatistics(with_histogram=with_histogram, marginals=summed)
        has_blocks = sketches and entry.kind is RowKind.TENSOR and entry.nbytes > SMALL_NBYTES
        self._blocks = RunningBlockDigests() if has_blocks else None

    def update(self, piece: memoryview) -> None:
        """Add a piece of the payload, unless the tensor is added by slabs."""
        if self._running is not None and self._header is not None and self._slabs is None:
            values = unpack(piece, self._header.element, self._left)
            self._left -= values.size
            self._running.update(values)

    def update_slabs(self, read: Callable[[Iterable[tuple[int, int]]], memoryview]) -> None:
        """Add a tensor in device layout that is too large for memory, slab by slab.

        `read` returns ranges of the payload, which are valid until it is called again.
        """
        for slab in self._slabs or ():
            assert self._running is not None and self._header is not None  # noqa: S101, PT018 (for mypy)
            self._running.update(slab.to_host(read(slab.ranges), self._header.element))

    def update_host(self, values: npt.NDArray[Any]) -> None:
        """Add a whole tensor."""
        if self._running is not None:
            self._running.update(values.reshape(-1))

    def add(self, piece: memoryview) -> None:
        """Add a piece of the payload, which is stored as it is."""
        self.update(piece)
        self.update_stored(piece)

    def update_stored(self, piece: memoryview) -> None:
        """Add a piece of the payload as it is stored."""
        if self._blocks is not None:
            self._blocks.update(piece)

    def settle(self) -> None:
        """Summarise once the last piece was added: the sums are in the cache until it is compressed."""
        if self._slabs is None:
            self._summary = self._summarised()

    def summary(self) -> Summary:
        """Return the results."""
        return self._summarised() if self._summary is None else self._summary

    def _summarised(self) -> Summary:
        if self._running is None and self._blocks is None:
            return UNKNOWN
        row, bins, marginals = UNKNOWN.statistics, UNKNOWN.histogram, UNKNOWN.marginals
        if self._running is not None:
            row, bins = self._running.row(), self._running.histogram_rows()
            marginals = self._running.marginals()
        blocks = UNKNOWN.blocks if self._blocks is None else self._blocks.result()[:, np.newaxis]
        return Summary(row, bins, blocks, marginals)


def elements_in(
    file: OpenFile, offset: int, view: StridedView, shape: tuple[int, ...], element: ElementType
) -> memoryview:
    """Return the elements of a view of a file, one after the other.

    Args:
        file: the file.
        offset: where the first element is in it.
        view: how the elements are picked.
        shape: lengths of the axes.
        element: their type.

    Raises:
        SourceChanged: the file does not have them any more.
    """

    def read(start: int, nbytes: int) -> bytearray:
        content = bytearray(nbytes)
        for _ in file.pieces(memoryview(content), offset + start, nbytes):
            pass  # one piece: the buffer is as large as what is read
        return content

    try:
        return elements_of(read, view, shape, element)
    except ValueError as exc:
        raise SourceChanged(f"{file.name}: the elements of a view are not what they were: {exc}") from exc
