"""One tensor of a store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.array_like import ArrayLike
from ingest.reader.text import counted, html_facts
from workers.arrays import device_format, dtypes
from workers.arrays.digest import digest
from workers.arrays.dtypes import ElementType
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, Statistics
from workers.errors import DamagedStore, UsageError
from workers.model import MIB
from workers.store.model import RowKind, tensor_name
from workers.store.tables import attributes_of, record_of

if TYPE_CHECKING:
    import dask.array

    from ingest.reader.anatomy import Anatomy
    from ingest.reader.step import Step
    from ingest.reader.step_flow import StepFlow
    from ingest.reader.unsharded import UnshardedTensor
    from workers.arrays.histogram import Histogram


#: Elements that are read at once.
_PIECE_NBYTES = 4 * MIB
#: A tensor of at most this size is kept in memory while it is examined.
SMALL_NBYTES = 64 * MIB
#: The approximate size of one dask chunk, in bytes.
_DASK_CHUNK_NBYTES = 32 * MIB


@dataclass(frozen=True, eq=False, repr=False)
class Tensor(ArrayLike):
    """One dumped tensor: where it comes from, what is known about it, and how to read its elements.

    The properties, except `removed`, come from the index of its step. `read`, `read_device`, `edges`
    and the tasks of `dask` read elements from the store, and so do `np.asarray(tensor)` and `tensor[5:7]`.
    """

    _step: Step
    row: int

    def __repr__(self) -> str:
        place = f"rank={self.rank} step={self.step}"
        return f"<{type(self).__name__} {place} {self.name} {self.dtype}{list(self.shape)}>"

    @property
    def rank(self) -> int:
        """The rank that dumped it."""
        return self._step.key.rank

    @property
    def step(self) -> int | None:
        """The step in which it was dumped; None for constants, which do not belong to a step."""
        return self._step.key.step

    @property
    def name(self) -> str:
        """Operator type and name, input or output, slot; and the occurrence if a loop repeats it.

        For example `MatMul.net_MatMul-op0.output.0#2`.
        """
        return tensor_name(self.op_type, self.op_name, self.io, self.slot, self.occurrence)

    @property
    def net(self) -> str:
        """The name of the network: that of its directory in the dump."""
        return self._label("net")

    @property
    def graph(self) -> str:
        """The name of the graph: that of its directory in the dump."""
        return self._label("graph")

    @property
    def op_type(self) -> str:
        """The type of the operator, such as `MatMul`."""
        return self._label("op_type")

    @property
    def op_name(self) -> str:
        """The name of the operator, with `_` in the place of `/`."""
        return self._label("op_name")

    @property
    def io(self) -> str:
        """`input` or `output`."""
        return self._label("io")

    @property
    def slot(self) -> int:
        """Which input or output of the operator, from 0."""
        return self._number("slot")

    @property
    def occurrence(self) -> int:
        """The number of this dump among those of the same slot in one step, in order of time, from 0."""
        return self._number("occurrence")

    @property
    def role(self) -> str:
        """`loss`, `gradient`, `weight`, `optimizer_state`, `activation`, or "": see `workers.store.roles`."""
        return str(self._step.roles[self.row])

    @property
    def timestamp(self) -> int:
        """When it was dumped, in microseconds since the epoch, by the clock of its host."""
        return self._number("timestamp")

    @property
    def format(self) -> str:
        """The memory layout as the dump names it, such as `NC1HWC0`."""
        return self._label("format")

    @property
    def dtype(self) -> str:
        """The element type, such as `float32` or `bfloat16`."""
        return self._label("dtype")

    @property
    def declared_dtype(self) -> str:
        """The element type before the writer converted it, as the file name spells it; "" if it does not."""
        return self._label("declared_dtype")

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return self._step.shape(self.row)

    @property
    def device_shape(self) -> tuple[int, ...] | None:
        """The lengths of the axes in the memory of the accelerator; None if they are those of `shape`."""
        device = self._step.device(self.row)
        return device.shape if device else None

    @property
    def full_name(self) -> str:
        """The name of the operator as the framework spells it; "" if the dump does not have it."""
        return self._label("full_name")

    @property
    def statistics_from(self) -> str:
        """Where the statistics come from: `computed`, or the file of the dump that has them."""
        return self._label("statistics_from")

    @property
    def problem(self) -> str:
        """What is wrong with it, such as statistics that differ from those in the dump; "" for nothing."""
        return self._label("problem")

    @property
    def nbytes(self) -> int:
        """The size of the payload as it is stored, in bytes."""
        return self._number("nbytes")

    @property
    def digest(self) -> str:
        """XXH3-128 of the payload as it is stored, 32 hexadecimal digits; "" if only statistics were dumped.

        Tensors with equal digests have equal bytes.
        """
        return bytes(self._step.tables.digest[self.row]).hex() if self.is_dumped else ""

    @property
    def source(self) -> str:
        """The path of the dump file, relative to the dump."""
        return self._label("source")

    @property
    def attributes(self) -> dict[str, Any]:
        """What else its file says: values beside the tensors, by name, as JSON has them; {} for nothing.

        Under `tensor`, what is known of this tensor alone, such as the placements of a DTensor.
        """
        return attributes_of(self._step.tables, self.row)

    @property
    def told(self) -> dict[str, Any]:
        """What the dump says of this tensor alone, besides its elements and statistics; {} for nothing."""
        told = record_of(self._step.tables, self.row).get("tensor")
        return told if isinstance(told, dict) else {}

    @cached_property
    def statistics(self) -> Statistics:
        """The statistics of its elements: counts are whole numbers; NaN is what is not known."""
        return Statistics.from_row(self._step.tables.statistics[self.row].tolist())

    @property
    def is_dumped(self) -> bool:
        """Whether its elements were dumped, not only its statistics."""
        return self._label("kind") == RowKind.TENSOR.value

    @property
    def removed(self) -> str:
        """Why the store does not have its elements although they were dumped; "" if it has them."""
        return "" if self._step.has_payload(self.row) else str(self._step.commit.without_tensors)

    @property
    def producers(self) -> tuple[Neighbour, ...]:
        """The tensors from which its content came, in its own step and rank.

        An input comes from the output that wrote its bytes, or from a parameter; a parameter from what wrote
        its final value. An output does not come from another tensor: `operands` has what its operator read.

        Known by equal content: the latest earlier output with the same bits, preferably of the same shape;
        and by the edges of the graph, where the dump has MindSpore's `.ir` files. If the two differ, content
        decides. Reads the index of the step, once.
        """
        passing = _flow_of(self).producer(self.row)
        passings = [] if passing is None else [passing]
        return tuple(Neighbour(self.of_row(own.source), own.by, own.is_certain) for own in passings)

    @property
    def consumers(self) -> tuple[Neighbour, ...]:
        """The tensors to which its content passed, in its own step and rank, in order of execution.

        Of an output or parameter: the inputs that were read from it. Of an input: those that were read from
        it after its operator had overwritten it in place, as optimizers do. See `producers`.
        """
        passings = _flow_of(self).consumers(self.row)
        return tuple(Neighbour(self.of_row(own.target), own.by, own.is_certain) for own in passings)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """All dumped inputs and outputs of its operator in the same call, with itself, in dump order."""
        call = _flow_of(self).call_of[self.row]
        rows = sorted(operand.row for operand in (*call.inputs, *call.outputs))
        return tuple(map(self.of_row, rows))

    def of_row(self, row: int) -> Tensor:
        """Return the tensor of another row of the same step."""
        return Tensor(self._step, row)

    @property
    def histogram(self) -> Histogram | None:
        """How many of its elements are in each power of two, by sign; None if it has no such sketch.

        Known after `gc` has removed its elements, too. Takes one request besides the index.

        Raises:
            DamagedStore: the histograms of its step are missing or damaged.
        """
        from ingest.reader.step_tables import histograms_of  # deferred: 0.01 s, and few ask

        return histograms_of(self._step, [self.row]).get(self.row)

    def read(self, *, verify: bool = True) -> npt.NDArray[Any]:
        """Return the elements with the bits, dtype and shape that were dumped, in the order of the axes.

        Reads only the chunks that hold them. Types that numpy does not have are those of `ml_dtypes`; packed
        elements (int4, uint1) take a byte each. A tensor in the layout of an accelerator is returned without
        its padding; `read_device` returns the padding, too.

        Args:
            verify: whether to compare the digest of the payload.

        Raises:
            UsageError: only statistics of it were dumped, or its elements were removed.
            DamagedStore: chunks are missing or damaged, or the digest differs.
        """
        payload = self._payload(verify=verify)
        element, device = self._element(), self._step.device(self.row)
        if device is not None and self._step.is_in_device_layout(self.row):
            flat = np.frombuffer(payload, np.uint8)
            return device_format.to_host(flat, device, self.shape, element).view(element.values)
        flat = dtypes.unpack(payload, element, math.prod(self.shape))
        try:
            return flat.reshape(self.shape, order="F" if self._number("fortran_order") else "C")
        except ValueError as exc:
            raise DamagedStore(
                f"{self._step.key}: {self.name}: {flat.size} elements do not fill the shape {self.shape}"
            ) from exc

    def pieces(self, nbytes: int = _PIECE_NBYTES) -> Iterator[npt.NDArray[Any]]:
        """Yield all elements, 1-D, in the order of the dump, in pieces of about `nbytes`.

        Packed elements, and a tensor in the layout of an accelerator, come in one piece. The digest is not
        compared, because a part does not have one.

        Raises:
            UsageError: only statistics of it were dumped, or its elements were removed.
            DamagedStore: chunks are missing or damaged.
        """
        self._check_dumped()
        if not self.is_plain:
            yield self.read().reshape(-1)
            return
        count = max(nbytes // max(self._element().to_numpy().itemsize, 1), 1)
        size = math.prod(self.shape)
        for begin in range(0, size, count):
            yield self.stored(begin, min(begin + count, size))

    def examine(
        self,
        percents: Sequence[float] = (0, 1, 5, 25, 50, 75, 95, 99, 100),
        *,
        bins: int = 20,
        positions: int = 10,
    ) -> Anatomy:
        """Return where NaN and infinities lie, percentiles and a histogram of the finite elements.

        Percentiles are exact. Reads the tensor up to six times; one of up to 64 MiB, once. Takes up to 64 MiB
        for such a tensor, and else about 50 MB, whatever its size; packed tensors and those in the layout of
        an accelerator are read as a whole.

        Args:
            percents: which percentiles, 0 to 100.
            bins: the number of bins of the histogram, at least 1.
            positions: how many of the elements that are not finite are listed.

        Raises:
            UsageError: only statistics of it were dumped, or its elements were removed; or a percentage or
                the number of bins is out of range.
            DamagedStore: chunks are missing or damaged, or the digest of such a small tensor differs.
        """
        if bad := [percent for percent in percents if not 0 <= percent <= 100]:
            raise UsageError(f"{bad[0]} is not a percentage", hint="Percentiles are 0 to 100.")
        if bins < 1:
            raise UsageError(f"a histogram of {bins} bins", hint="It has at least 1.")
        order = "F" if self.is_fortran_order else "C"
        is_kept = self.nbytes <= SMALL_NBYTES or not self.is_plain
        kept = [self._whole()] if is_kept else None
        from ingest.reader.anatomy import examine  # deferred: 0.02 s, which listings do not need

        return examine(
            lambda: map(self._as_values, self.pieces() if kept is None else kept),
            self.shape,
            order=order,
            percents=percents,
            bins=bins,
            positions=positions,
        )

    def read_device(self) -> npt.NDArray[Any]:
        """Return the tensor as it lay in the memory of the accelerator, with its padding; see `device_shape`.

        Raises:
            UsageError: only statistics of it were dumped, or its elements were removed.
            DamagedStore: chunks are missing or damaged, or the digest differs.
        """
        element, device = self._element(), self._step.device(self.row)
        if device is None:
            return self.read()
        payload = self._payload(verify=True)
        if not self._step.is_in_device_layout(self.row):
            host = np.frombuffer(payload, element.to_numpy()).reshape(self.shape)
            return device_format.to_device(host, device).view(element.values)
        return np.frombuffer(payload, element.values).reshape(device.shape)

    def dask(self) -> dask.array.Array:
        """Return the tensor as a dask array, of which each task reads its own range of the store.

        Raises:
            UsageError: only statistics of it were dumped.
        """
        import dask.array as da  # deferred: takes 0.3 s to import
        from dask.base import tokenize

        self._check_dumped()
        shape, axes = self.shape, self.stored_axes
        if not shape:  # a task would make a number of it, without the padding of a long double
            number: dask.array.Array = da.from_array(self.read(), chunks=())
            return number
        lengths = list(shape)
        if axes and 0 not in shape:
            row_nbytes = self.nbytes // shape[axes[0]]
            lengths[axes[0]] = max(_DASK_CHUNK_NBYTES // max(row_nbytes, 1), 1)
        token = tokenize(str(self._step.address), str(self._step.key), self._step.fingerprint, self.row)
        whole: dask.array.Array = da.map_blocks(
            _read_block,
            # Each task carries one row of the index instead of all of it, and reads this very generation.
            Tensor(self._step.only(self.row), 0),
            chunks=da.core.normalize_chunks(tuple(lengths), shape),
            dtype=self._element().values,
            meta=np.empty((0,) * len(shape), self._element().values),
            name=f"read_block-{token}",
        )
        return whole

    def unsharded(self, placement: str = "") -> UnshardedTensor:
        """Return the whole tensor that this one is a piece of, from the same step of all ranks.

        Nothing is read but the indexes, until elements are asked for: `np.asarray(whole)`, `whole[5:7]`.

        Args:
            placement: how the ranks hold it, as `compare` prints it: `shard 0`, `replicated`, `partial sum`,
                `replicated, shard 1`. Default: as the dump tells (DTensors, annotations of SGLang's dumper);
                or replicated, if all ranks have the same bytes.

        Raises:
            UsageError: it is not known how the ranks hold it, or the shapes do not allow `placement`.
        """
        from ingest.reader.unsharded import pieces_of, unshard  # deferred: 0.01 s, and few ask

        return unshard(*pieces_of(self._step, self.row), placement)

    def edges(self, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the first and the last `count` elements, both 1-D, in the order of the dump.

        Raises:
            UsageError: only statistics of it were dumped, or its elements were removed.
            DamagedStore: chunks are missing or damaged.
        """
        self._check_dumped()
        size = math.prod(self.shape)
        count = min(max(count, 0), size)
        if not self.is_plain:
            flat = self.read().reshape(-1)
            return flat[:count], flat[size - count :]
        return self.stored(0, count), self.stored(size - count, size)

    @property
    def stored_axes(self) -> tuple[int, ...] | None:
        """The axes in the order of the store, the slowest first.

        None if only the whole tensor can be read: it is packed, in a device layout, or not dumped.
        """
        if not self.is_dumped or not self.is_plain:
            return None
        axes = tuple(range(len(self.shape)))
        return axes[::-1] if self._number("fortran_order") else axes

    @property
    def has_ranges(self) -> bool:
        """Whether a range of its elements, in the order of its axes, can be read without the rest."""
        return self.is_plain and not (self._number("fortran_order") and len(self.shape) > 1)

    def elements(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return some of its elements, 1-D, in the order of its axes. Without `has_ranges`, it reads all.

        Raises:
            UsageError: only statistics of it were dumped, its elements were removed, or it has fewer.
            DamagedStore: chunks are missing or damaged.
        """
        self._check_dumped()
        size = math.prod(self.shape)
        if not 0 <= start <= stop <= size:
            raise UsageError(
                f"{self.name} has no range of elements from {start} to {stop}",
                hint=f"It has {counted(size, 'element')}; the last one of a range is left out.",
            )
        return self.stored(start, stop) if self.has_ranges else self.read().reshape(-1)[start:stop]

    def _element(self) -> ElementType:
        return self._step.element(self.row)

    @property
    def is_plain(self) -> bool:
        """Whether the stored bytes are those of the elements, so that a range of them can be read."""
        return not self._element().is_packed and not self._step.is_in_device_layout(self.row)

    @property
    def is_fortran_order(self) -> bool:
        """Whether `pieces` has the elements in Fortran order: the first axis is the fastest."""
        return self.is_plain and bool(self._number("fortran_order"))

    def _whole(self) -> npt.NDArray[Any]:
        if not self.is_plain:
            return self.read().reshape(-1)
        return np.frombuffer(self._payload(verify=True), self._element().to_numpy())

    def _as_values(self, piece: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return piece.view("V1") if self._element().is_opaque else piece

    def _check_dumped(self) -> None:
        if not self.is_dumped:
            raise UsageError(
                f"{self._step.key}: {self.name}: only statistics were dumped, no elements",
                hint="`Tensor.statistics` has the statistics.",
            )

    def _payload(self, *, verify: bool) -> bytearray:
        self._check_dumped()
        payload = self._step.read(self.row)
        if verify and digest(payload).hex() != self.digest:
            raise DamagedStore(f"{self._step.key}: {self.name}: the digest does not match")
        return payload

    def stored(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements `start` to `stop` in the order of the store, 1-D. Needs `stored_axes`."""
        dtype = self._element().to_numpy()
        return np.frombuffer(self._step.read(self.row, start * dtype.itemsize, stop * dtype.itemsize), dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return everything that the index has of this tensor as a flat dictionary of plain values."""
        statistics = self.statistics
        known = {name: getattr(statistics, name) for name in COUNT_FIELDS}
        counts = {name: None if math.isnan(count) else count for name, count in known.items()}
        moments = {name: getattr(statistics, name) for name in FIELDS if name not in counts}
        fields = {name: getattr(self, name) for name in TENSOR_FIELDS}
        device_shape = list(self.device_shape) if self.device_shape is not None else None
        return {**fields, "shape": list(self.shape), "device_shape": device_shape, **counts, **moments}

    def _repr_html_(self) -> str:
        known = {name: value for name, value in self.to_dict().items() if value not in ("", None)}
        shown = ("rank", "step", "op_type", "full_name", "dtype", "shape", "source", "problem", *FIELDS)
        return html_facts(self.name, {name: known[name] for name in shown if name in known})

    def _label(self, field: str) -> str:
        return str(self._step.tables.label(field)[self.row])

    def _number(self, field: str) -> int:
        return int(self._step.tables.number(field)[self.row])


#: The fields of `Tensor.to_dict` that are not statistics. They are part of the contract of `--json`.
TENSOR_FIELDS = (
    "rank",
    "step",
    "name",
    "net",
    "graph",
    "op_type",
    "op_name",
    "full_name",
    "io",
    "slot",
    "occurrence",
    "role",
    "timestamp",
    "format",
    "dtype",
    "declared_dtype",
    "shape",
    "device_shape",
    "nbytes",
    "digest",
    "source",
    "statistics_from",
    "is_dumped",
    "problem",
)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A tensor from which, or to which, the content of another one passed."""

    tensor: Tensor
    by: str
    """What shows it: `content`, `graph`, or `content and graph`.

    With `graph` alone, the bytes differ: one side was written again after it had been dumped, as parameters
    are, or bytes changed on the way; see `ingest.divergence`.
    """
    is_certain: bool
    """Whether it cannot be by chance: tensors with a single value often have equal content."""

    @property
    def fused_from(self) -> tuple[str, ...]:
        """The operators of the model that were fused into its operator; empty if not known."""
        from ingest.reader.context import context_of  # deferred: as in `_flow_of`

        tensor, catalog = self.tensor, self.tensor._step.catalog  # noqa: SLF001  (of the class above)
        return () if catalog is None else context_of(catalog, tensor.rank).original_names(tensor)

    def to_dict(self) -> dict[str, Any]:
        """Return a flat dictionary of plain values."""
        names = ("name", "graph", "op_type", "op_name")
        told = {"fused_from": list(self.fused_from), "by": self.by, "is_certain": self.is_certain}
        return {**{name: getattr(self.tensor, name) for name in names}, **told}


def _flow_of(tensor: Tensor) -> StepFlow:
    from ingest.reader.step_flow import flow_of  # deferred: 0.04 s, which most questions do not need

    return flow_of(tensor._step)  # noqa: SLF001  (of the class above)


def _read_block(tensor: Tensor, *, block_info: dict[Any, Any]) -> npt.NDArray[Any]:
    place = block_info[None]["array-location"]
    return tensor[tuple(slice(begin, end) for begin, end in place)]
