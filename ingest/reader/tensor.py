"""One tensor of a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader import notebook
from ingest.reader.array_like import ArrayLike
from ingest.reader.indexed_step import IndexedStep
from workers.arrays import device_format, dtypes
from workers.arrays.digest import digest
from workers.arrays.dtypes import ElementType
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, Statistics
from workers.errors import DamagedStore, UsageError
from workers.model import MIB
from workers.store.model import RowKind
from workers.store.names import tensor_name

if TYPE_CHECKING:
    import dask.array

#: The approximate size of one dask chunk, in bytes.
_DASK_CHUNK_NBYTES = 32 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class Tensor(ArrayLike):
    """One dumped tensor: where it comes from, what is known about it, and how to read its elements.

    The properties, except `removed`, come from the index of its step. `read`, `read_device`, `edges`, `block`
    and the tasks of `dask` read elements from the store, and so do `np.asarray(tensor)` and `tensor[5:7]`.
    """

    _step: IndexedStep
    row: int
    """Its row in the index of its step."""

    def __repr__(self) -> str:
        return f"<Tensor rank={self.rank} step={self.step} {self.name} {self.dtype}{list(self.shape)}>"

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
    def statistics(self) -> Statistics:
        """The statistics of its elements: counts are whole numbers; NaN is what is not known."""
        return Statistics.from_row(self._step.tables.statistics[self.row].tolist())

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
        return self._shaped(dtypes.unpack(payload, element, math.prod(self.shape)), self.shape)

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

        self._check_dumped()
        shape = self.shape
        if math.prod(shape) == 0 or not shape:
            small: dask.array.Array = da.from_array(self.read(), chunks=shape)
            return small
        # Each task carries one row of the index instead of all of it, and reads this very generation.
        alone = Tensor(self._step.only(self.row), 0)
        axis = self.slowest_axis
        if axis is None:
            whole: dask.array.Array = da.from_delayed(
                self._delayed(_read_whole, alone), shape=shape, dtype=self._element().values
            )
            return whole
        row_nbytes = self.nbytes // shape[axis]
        rows = max(_DASK_CHUNK_NBYTES // max(row_nbytes, 1), 1)
        blocks = [
            da.from_delayed(
                self._delayed(_read_block, alone, axis, begin, end),
                shape=tuple(end - begin if i == axis else n for i, n in enumerate(shape)),
                dtype=self._element().values,
            )
            for begin, end in _intervals(shape[axis], rows)
        ]
        joined: dask.array.Array = da.concatenate(blocks, axis=axis)
        return joined

    def _delayed(self, function: Callable[..., Any], alone: Tensor, *args: int) -> Any:
        from dask.base import tokenize  # deferred, as in `dask`
        from dask.delayed import delayed

        step = self._step
        token = tokenize(str(step.address), str(step.key), step.fingerprint, self.row, *args)
        name = f"{function.__name__.lstrip('_')}-{token}"
        return delayed(function, pure=True)(alone, *args, dask_key_name=name)

    def edges(self, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the first and the last `count` elements, both 1-D, in the order of the dump.

        Raises:
            UsageError: only statistics of it were dumped, or its elements were removed.
            DamagedStore: chunks are missing or damaged.
        """
        self._check_dumped()
        size = math.prod(self.shape)
        if not self._is_plain:
            flat = self.read().reshape(-1)
            return flat[:count], flat[max(size - count, 0) :]
        return self._elements(0, min(count, size)), self._elements(max(size - count, 0), size)

    @property
    def slowest_axis(self) -> int | None:
        """The axis along which parts are contiguous in the store: the first, or the last in Fortran order.

        None if only the whole tensor can be read: it has no axes, or is packed, or in a device layout.
        """
        if not self.is_dumped or not self.shape or not self._is_plain:
            return None
        return len(self.shape) - 1 if self._number("fortran_order") else 0

    @property
    def is_dumped(self) -> bool:
        """Whether its elements were dumped, not only its statistics."""
        return self._label("kind") == RowKind.TENSOR.value

    @property
    def removed(self) -> str:
        """Why the store does not have its elements although they were dumped; "" if it has them."""
        return "" if self._step.has_payload(self.row) else str(self._step.commit.without_tensors)

    def to_dict(self) -> dict[str, Any]:
        """Return everything that the index has of this tensor as a flat dictionary of plain values."""
        statistics = self.statistics
        counts = {name: _known(getattr(statistics, name)) for name in COUNT_FIELDS}
        moments = {name: getattr(statistics, name) for name in FIELDS if name not in counts}
        fields = {name: getattr(self, name) for name in TENSOR_FIELDS}
        device_shape = list(self.device_shape) if self.device_shape is not None else None
        return {**fields, "shape": list(self.shape), "device_shape": device_shape, **counts, **moments}

    def _label(self, field: str) -> str:
        return str(self._step.tables.label(field)[self.row])

    def _number(self, field: str) -> int:
        return int(self._step.tables.number(field)[self.row])

    @property
    def has_ranges(self) -> bool:
        """Whether a range of its elements, in the order of its axes, can be read without the rest."""
        return self._is_plain and not (self._number("fortran_order") and len(self.shape) > 1)

    def elements(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return some of its elements, 1-D, in the order of its axes. Without `has_ranges`, it reads all.

        Raises:
            UsageError: only statistics of it were dumped, or its elements were removed.
            DamagedStore: chunks are missing or damaged.
        """
        self._check_dumped()
        return self._elements(start, stop) if self.has_ranges else self.read().reshape(-1)[start:stop]

    def _element(self) -> ElementType:
        return self._step.element(self.row)

    @property
    def _is_plain(self) -> bool:
        """Whether the stored bytes are those of the elements, so that a range of them can be read."""
        return not self._element().is_packed and not self._step.is_in_device_layout(self.row)

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

    def _shaped(self, flat: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        try:
            return flat.reshape(shape, order="F" if self._number("fortran_order") else "C")
        except ValueError as exc:
            raise DamagedStore(
                f"{self._step.key}: {self.name}: {flat.size} elements do not fill the shape {shape}"
            ) from exc

    def _elements(self, start: int, stop: int) -> npt.NDArray[Any]:
        dtype = self._element().to_numpy()
        return np.frombuffer(self._step.read(self.row, start * dtype.itemsize, stop * dtype.itemsize), dtype)

    def block(self, axis: int, begin: int, end: int) -> npt.NDArray[Any]:
        """Return positions `begin` to `end` of the slowest axis; `tensor[5:7]` does so along any axis.

        Args:
            axis: must be `slowest_axis`.
            begin: the first position.
            end: the position after the last.

        Raises:
            UsageError: the axis is another one.
            DamagedStore: chunks are missing or damaged.
        """
        if axis != self.slowest_axis:
            raise UsageError(f"{self.name}: blocks along axis {axis} cannot be read", hint="Use tensor[...].")
        row = math.prod(self.shape) // max(self.shape[axis], 1)
        shape = tuple(end - begin if i == axis else n for i, n in enumerate(self.shape))
        return self._shaped(self._elements(begin * row, end * row), shape)

    def _repr_html_(self) -> str:
        known = {name: value for name, value in self.to_dict().items() if value not in ("", None)}
        shown = ("rank", "step", "op_type", "full_name", "dtype", "shape", "source", "problem", *FIELDS)
        return notebook.facts(self.name, {name: known[name] for name in shown if name in known})


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


def _known(count: float) -> float | None:
    return None if math.isnan(count) else count


def _intervals(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut a length into intervals of at most `step`."""
    for begin in range(0, length, step):
        yield begin, min(begin + step, length)


def _read_whole(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.read()


def _read_block(tensor: Tensor, axis: int, begin: int, end: int) -> npt.NDArray[Any]:
    return tensor.block(axis, begin, end)
