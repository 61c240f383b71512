"""A committed step in the store: its index, the payload of each row, and what follows from both.

Source files are rebuilt from the part of its file that each row has, byte for byte; statistics are recomputed
from stored payloads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from workers.arrays import device_format, dtypes
from workers.arrays.arrangements import StridedView
from workers.arrays.device_format import DeviceLayout
from workers.arrays.digest import new_digest
from workers.arrays.dtypes import ElementType, unpack
from workers.arrays.marginals import NO_MARGINALS, MarginalTable, running_marginals
from workers.arrays.statistics import RunningStatistics
from workers.errors import DamagedStore, StepRemoved, StoreDenied, TensorsRemoved, UsageError
from workers.model import StepKey
from workers.store import commit, metadata, tables
from workers.store.commit import Commit
from workers.store.model import ArraySpec
from workers.store.objects import ObjectStore
from workers.store.packed.shards import ShardReader, ShardStream
from workers.store.tables import Tables, record_of

_ARRAY = re.compile(r"(files|tensors/[a-z0-9_]+|pool/step_[0-9]+/[0-9a-f]{64}/[a-z0-9_]+)?")


@dataclass(eq=False)
class StoredStep:
    """One committed generation of one rank and step. Nothing is read before it is needed."""

    objects: ObjectStore
    commit: Commit
    _tables: Tables | None = None
    _readers: dict[str, ShardReader] = field(default_factory=dict)

    @property
    def key(self) -> StepKey:
        """Rank and step."""
        return self.commit.key

    @property
    def has_tensors(self) -> bool:
        """Whether the payloads of its tensors are there; `commit.without_tensors` tells why not."""
        return self.commit.without_tensors is None

    @property
    def tables(self) -> Tables:
        """Index and statistics, one row per source file; read in one request when first used.

        Raises:
            DamagedStore: they are missing or damaged.
            StepRemoved: the step was removed since it was opened.
        """
        known = self._tables  # another thread may forget it meanwhile
        if known is None:
            prefix = self.commit.prefix
            contents = self._read_tables([f"{prefix}/{key}" for key in tables.chunk_keys()])
            chunks = {key[len(prefix) + 1 :]: data for key, data in contents.items()}
            nodes = self.commit.packed_nodes
            where = str(self.key)
            with self.asking_again():
                decoded = tables.decode(nodes, chunks, where, self.commit.record.checksums)
                known = self._tables = tables.check(decoded, nodes, where, has_tensors=self.has_tensors)
        return known

    def _read_tables(self, keys: list[str]) -> dict[str, bytes]:
        try:
            return self.objects.get_many(keys)
        except StoreDenied as exc:
            if not self.objects.is_local:
                raise
            # In a directory, each file has an owner and a mode: the other steps may well be readable.
            raise DamagedStore(f"{self.key}: {exc.message}. {exc.hint}", hint=exc.hint) from exc

    @contextmanager
    def asking_again(self) -> Iterator[None]:
        """Turn damage into an error that says the step was removed, if it was removed since it was opened.

        Raises:
            StepRemoved, TensorsRemoved: in the place of `DamagedStore`.
        """
        try:
            yield
        except DamagedStore as exc:
            if gone := self.removed_meanwhile():
                raise gone from exc
            raise

    def removed_meanwhile(self) -> UsageError | None:
        """Ask the store what happened to the step since it was opened; None if it is as it was."""
        try:
            now = commit.read(self.objects, self.key)
        except DamagedStore:
            return None
        if now is None:
            return StepRemoved(f"{self.key} was removed since it was opened")
        if now.fingerprint != self.commit.fingerprint:
            return StepRemoved(f"{self.key} was committed again since it was opened")
        if now.without_tensors is not None and self.has_tensors:
            return TensorsRemoved(f"{self.key}: {now.without_tensors}")
        return None

    @property
    def has_read_tables(self) -> bool:
        """Whether the index is in memory."""
        return self._tables is not None

    def forget_tables(self) -> None:
        """Free the memory of the index; it is read again when it is used."""
        self._tables = None

    def element(self, row: int) -> ElementType:
        """Return the element type of a tensor row."""
        big_endian = str(self.tables.label("array")[row]).endswith("_big_endian")
        dtype = str(self.tables.label("dtype")[row])
        try:
            return dtypes.from_name(dtype, big_endian=big_endian)
        except (ValueError, TypeError) as exc:
            raise DamagedStore(f"{self.key}: row {row} has an unknown type {dtype!r:.100}") from exc

    def shape(self, row: int) -> tuple[int, ...]:
        """Return the lengths of the axes of a tensor row."""
        ndim = int(self.tables.number("ndim")[row])
        return tuple(int(n) for n in self.tables.shape[row, :ndim])

    def device(self, row: int) -> DeviceLayout | None:
        """Return how a tensor row lay in the memory of the accelerator; None if in the order of its axes."""
        lengths = str(self.tables.label("device_shape")[row])
        if not self.tables.label("layout")[row]:
            return None
        try:
            shape = tuple(int(n) for n in lengths.split(",") if n)
        except ValueError as exc:
            raise DamagedStore(f"{self.key}: row {row} has an impossible device shape") from exc
        groups = int(self.tables.number("groups")[row])
        layout = DeviceLayout(str(self.tables.label("format")[row]), shape, groups)
        if not device_format.convertible(layout, self.shape(row), self.element(row)):
            raise DamagedStore(f"{self.key}: row {row} has an impossible device layout")
        return layout

    def is_in_device_layout(self, row: int) -> bool:
        """Return whether the payload of a row is stored as it lay in the memory of the accelerator."""
        return bool(self.tables.label("layout")[row] == "device")

    def read(self, row: int, start: int = 0, stop: int | None = None) -> bytearray:
        """Return payload bytes `start` to `stop` of one row; both must be multiples of the item size.

        Raises:
            DamagedStore: they are missing or damaged.
            StepRemoved, TensorsRemoved: they were removed since the step was opened.
        """
        place = self._place(row)
        nbytes = int(self.tables.number("nbytes")[row])
        stop = nbytes if stop is None else stop
        if place is None or start == stop:
            return bytearray()
        reader, first = place
        # Other ends occur only in an array of bytes that holds larger elements.
        itemsize = reader.spec.itemsize
        with self.asking_again():
            return reader.read(first + start // itemsize, first + stop // itemsize)

    def payloads(self, rows: Iterable[int], piece_nbytes: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield each row with its payload in pieces, in the order of the store: each chunk is read once.

        Chunks are fetched ahead of need, some tens of MiB. Consume the pieces before the next row; they raise
        what `read` raises.
        """
        array = self.tables.label("array")
        offset, size = self.tables.number("offset"), self.tables.number("size")
        ordered = sorted(rows, key=lambda row: (array[row], offset[row]))
        for _, group in groupby(ordered, key=lambda row: array[row]):
            members = list(group)
            places = {row: place for row in members if (place := self._place(row)) is not None}
            yield from ((row, iter(())) for row in members if row not in places)
            if not places:
                continue
            ranges = {row: (first, first + int(size[row])) for row, (_, first) in places.items()}
            reader = next(iter(places.values()))[0]
            with ShardStream(reader, list(ranges.values())) as stream:
                for row, (start, stop) in ranges.items():
                    pieces = stream.pieces(start, stop, piece_nbytes // reader.spec.itemsize)
                    yield row, self._with_asking_again(pieces)

    def _with_asking_again(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        with self.asking_again():
            yield from pieces

    def _place(self, row: int) -> tuple[ShardReader, int] | None:
        """Return the reader of a row's array, and its first element in it; None for an empty row."""
        path = str(self.tables.label("array")[row])
        if not _ARRAY.fullmatch(path):  # a part of keys
            raise DamagedStore(f"{self.key}: {path!r:.100} is not the name of an array")
        first = int(self.tables.number("offset")[row])
        if int(self.tables.number("size")[row]) == 0:
            return None
        if first < 0:
            problem = self.tables.label("problem")[row]
            raise DamagedStore(f"{self.key}: row {row} has no bytes: {problem}")
        if path not in self._readers:
            spec = self.packed_spec(path)
            self._readers[path] = ShardReader(self.objects, self.commit.place_of(path), spec)
        return self._readers[path], first

    def has_payload(self, row: int) -> bool:
        """Return whether the payload of a row is stored: a step may be kept without its tensors."""
        return self.has_tensors or not metadata.is_of_tensors(str(self.tables.label("array")[row]))

    def packed_spec(self, path: str) -> ArraySpec:
        """Return the grid of a packed array.

        Raises:
            TensorsRemoved: the step is kept without its tensors.
            DamagedStore: the array is missing, or its metadata is damaged.
        """
        without = self.commit.without_tensors
        pooled = self.commit.record.pool.get(path)
        document = self.commit.nodes.get(path) if pooled is None else pooled.node
        if without is not None and metadata.is_of_tensors(path):
            raise TensorsRemoved(f"{self.key}: {without}")
        if document is None:
            raise DamagedStore(f"{self.key}: the array {path} is missing")
        try:
            return metadata.packed_spec(path, document)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise DamagedStore(f"{self.key}: the metadata of {path} is damaged") from exc


def begin_of(step: StoredStep, row: int) -> int:
    """Return where the part of a row begins in its source file, in bytes."""
    table = step.tables
    return int(table.number("source_offset")[row]) - len(_bytes(table.label("lead")[row]))


def nbytes_of(step: StoredStep, row: int) -> int:
    """Return how many bytes the part of a row has in its source file."""
    table = step.tables
    envelope_nbytes = len(_bytes(table.label("lead")[row])) + len(_bytes(table.label("tail")[row]))
    return int(table.number("source_nbytes")[row]) + envelope_nbytes


def is_view(step: StoredStep, row: int) -> bool:
    """Return whether a row has no part of its file: its elements are picked from the parts of other rows."""
    table = step.tables
    return not table.number("source_nbytes")[row] and bool(table.number("nbytes")[row])


def view_of(step: StoredStep, row: int) -> StridedView | None:
    """Return how the elements of a view are picked from its file; None if the index does not say."""
    try:
        record = record_of(step.tables, row)["view"]
        strides = record["strides"]
        return StridedView(
            None if strides is None else tuple(int(stride) for stride in strides),
            conjugate=bool(record["conjugate"]),
            negative=bool(record["negative"]),
            inline=bytes.fromhex(record["inline"]),
            deflated=int(record["deflated"]),
            skipped=int(record["skipped"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def part(step: StoredStep, row: int, payload: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """Yield the part of a source file that a row has: bytes before the payload, the payload, bytes after it.

    The digest of the payload is compared when its last piece has been read.

    Args:
        step: the step.
        row: a row of its index.
        payload: what is stored for it, in pieces, as `StoredStep.payloads` gives it.

    Raises:
        DamagedStore: the payload is missing or damaged, or does not match its digest.
    """
    table = step.tables
    yield _bytes(table.label("lead")[row])
    yield from _as_in_source(step, row, _checked(payload, table.digest[row].tobytes()))
    yield _bytes(table.label("tail")[row])


def _bytes(text: object) -> bytes:
    return str(text).encode("latin-1")


def _checked(pieces: Iterable[bytes], digest: bytes) -> Iterator[bytes]:
    running = new_digest()
    for piece in pieces:
        running.update(piece)
        yield piece
    if running.digest() != digest:
        raise DamagedStore("the digest does not match")


def _as_in_source(step: StoredStep, row: int, pieces: Iterator[bytes]) -> Iterator[bytes | memoryview]:
    """Yield the payload as the file had it: in device layout, if it was brought into host layout."""
    if is_view(step, row):
        for _ in pieces:
            pass  # to compare the digest
        return
    device = step.device(row)
    if device is None or step.is_in_device_layout(row):
        yield from pieces
        return
    stored = b"".join(pieces)
    host = np.frombuffer(stored, step.element(row).to_numpy()).reshape(step.shape(row))
    yield np.ascontiguousarray(device_format.to_device(host, device)).reshape(-1).view(np.uint8).data


class RecomputedStatistics:
    """The statistics of one row, computed from its payload; only if the stored ones were computed, too."""

    def __init__(
        self, step: StoredStep, row: int, *, with_histogram: bool = False, with_marginals: bool = False
    ) -> None:
        self._step, self._row = step, row
        self._running: RunningStatistics | None = None
        if step.tables.label("statistics_from")[row] == "computed":
            self._element = step.element(row)
            self._left = math.prod(step.shape(row))
            self._device = step.device(row) if step.is_in_device_layout(row) else None
            self._payload: list[bytes] = []
            self._is_fortran = self._device is None and bool(step.tables.number("fortran_order")[row])
            summed = None
            if with_marginals:
                summed = running_marginals(self._element, step.shape(row), fortran_order=self._is_fortran)
            self._running = RunningStatistics(with_histogram=with_histogram, marginals=summed)

    def update(self, piece: bytes) -> None:
        """Add a piece of the payload."""
        if self._running is None:
            return
        if self._device is not None:
            self._payload.append(bytes(piece))
            return
        values = unpack(piece, self._element, self._left)
        self._left -= values.size
        self._running.update(values)

    def result(self) -> npt.NDArray[np.float64] | None:
        """Return the statistics, (len(FIELDS),); None if the stored ones were not computed."""
        self._take_device()
        return None if self._running is None else np.array(self._running.row())

    def histogram_rows(self) -> npt.NDArray[np.int64]:
        """Return the histogram, (bin, 3); empty without one. See `histogram.FIELDS`."""
        self._take_device()
        return np.zeros((0, 3), np.int64) if self._running is None else self._running.histogram_rows()

    def marginals(self) -> MarginalTable:
        """Return the marginals; none without any. Call it once."""
        self._take_device()
        return NO_MARGINALS if self._running is None else self._running.marginals()

    def _take_device(self) -> None:
        """Add a tensor in device layout, which is complete now."""
        if self._running is not None and self._device is not None and self._payload:
            payload = np.frombuffer(b"".join(self._payload), np.uint8)
            host = device_format.to_host(payload, self._device, self._step.shape(self._row), self._element)
            self._running.update(host.reshape(-1))
            self._payload.clear()
