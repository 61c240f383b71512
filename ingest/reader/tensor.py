"""One tensor of a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.opened_step import OpenedStep
from workers.arrays import device_format, dtypes
from workers.arrays.digest import digest
from workers.arrays.dtypes import ElementType
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, Statistics
from workers.errors import DamagedStore, UsageError
from workers.model import MIB
from workers.store.model import RowKind

if TYPE_CHECKING:
    import dask.array


#: Bytes of one dask chunk, about.
_DASK_CHUNK_NBYTES = 32 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One dumped tensor: where it comes from, what is known of it, and a way to read it.

    Everything but `read` and `dask` costs nothing: it stands in the index of its step.
    """

    _step: OpenedStep
    row: int
    """Row of the index of its step."""

    def __repr__(self) -> str:
        return f"<Tensor rank={self.rank} step={self.step} {self.name} {self.dtype}{list(self.shape)}>"

    @property
    def rank(self) -> int:
        """The rank that dumped it."""
        return self._step.key.rank

    @property
    def step(self) -> int | None:
        """The step it was dumped in; None for constants, which belong to no step."""
        return self._step.key.step

    @property
    def name(self) -> str:
        """Operator type and name, input or output, slot; and the occurrence, where a loop repeats it."""
        repeated = f"#{self.occurrence}" if self.occurrence else ""
        return f"{self.op_type}.{self.op_name}.{self.io}.{self.slot}{repeated}"

    @property
    def net(self) -> str:
        """The network, by the name of its directory."""
        return self._label("net")

    @property
    def graph(self) -> str:
        """The graph, by the name of its directory."""
        return self._label("graph")

    @property
    def op_type(self) -> str:
        """The type of the operator, such as `MatMul`."""
        return self._label("op_type")

    @property
    def op_name(self) -> str:
        """The name of the operator, with `/` as `_` in it."""
        return self._label("op_name")

    @property
    def io(self) -> str:
        """`input` or `output`."""
        return self._label("io")

    @property
    def slot(self) -> int:
        """Which input or output."""
        return self._number("slot")

    @property
    def occurrence(self) -> int:
        """Number of this dump among those of the same slot in one step, in order of time."""
        return self._number("occurrence")

    @property
    def timestamp(self) -> int:
        """When it was dumped, in microseconds since the epoch by the clock of its host."""
        return self._number("timestamp")

    @property
    def format(self) -> str:
        """The memory layout as the dump names it."""
        return self._label("format")

    @property
    def dtype(self) -> str:
        """The element type, such as `float32` or `bfloat16`."""
        return self._label("dtype")

    @property
    def declared_dtype(self) -> str:
        """The type before the writer converted it, as the file name spells it; "" where it does not."""
        return self._label("declared_dtype")

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return self._step.shape(self.row)

    @property
    def device_shape(self) -> tuple[int, ...] | None:
        """The lengths of the axes in the memory of the accelerator; None where they are those of `shape`."""
        device = self._step.device(self.row)
        return device.shape if device else None

    @property
    def full_name(self) -> str:
        """The name of the operator as the framework spells it; "" where the dump does not say."""
        return self._label("full_name")

    @property
    def statistics_from(self) -> str:
        """`computed`, or the file of the dump that gives the statistics."""
        return self._label("statistics_from")

    @property
    def problem(self) -> str:
        """What is wrong with it, such as statistics that the dump gives otherwise; "" for nothing."""
        return self._label("problem")

    @property
    def nbytes(self) -> int:
        """Bytes of the payload, as it is stored."""
        return self._number("nbytes")

    @property
    def digest(self) -> str:
        """XXH3-128 of the payload as it is stored, in hexadecimal; "" where only statistics were dumped.

        Equal digest, equal bytes.
        """
        return bytes(self._step.tables.digest[self.row]).hex() if self.is_dumped else ""

    @property
    def source(self) -> str:
        """The dump file, relative to the dump."""
        return self._label("source")

    @property
    def statistics(self) -> Statistics:
        """What is known of its values."""
        return Statistics(*(float(value) for value in self._step.tables.statistics[self.row]))

    def read(self, *, verify: bool = True) -> npt.NDArray[Any]:
        """Return the tensor: same bits, dtype and shape as it was dumped, in the order of its axes.

        Reads only the chunks that hold it. What numpy has no type for comes as one of `ml_dtypes`; packed
        elements (int4, uint1) get a byte each. What was dumped in the layout of an accelerator comes
        without its padding; `read_device` has it.

        Raises:
            UsageError: only statistics of it were dumped.
            DamagedStore: chunks are missing or damaged, or (unless `verify` is off) the digest differs.
        """
        payload = self._payload(verify=verify)
        element, device = self._element(), self._step.device(self.row)
        if device is not None and self._step.is_in_device_layout(self.row):
            flat = np.frombuffer(payload, np.uint8)
            return device_format.to_host(flat, device, self.shape, element).view(element.values)
        return self._shaped(dtypes.unpack(payload, element, math.prod(self.shape)), self.shape)

    def read_device(self) -> npt.NDArray[Any]:
        """Return the tensor as it lay in the memory of the accelerator, padding and all; see `device_shape`.

        Raises:
            UsageError: only statistics of it were dumped.
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
        """Return the tensor as a dask array that reads only the ranges it needs, when it needs them.

        Raises:
            UsageError: only statistics of it were dumped.
        """
        import dask.array as da

        self._check_dumped()
        shape = self.shape
        if math.prod(shape) == 0 or not shape:
            small: dask.array.Array = da.from_array(self.read(), chunks=shape)
            return small
        # It knows its generation, and nothing of the index but its own row: little to send.
        alone = Tensor(self._step.only(self.row), 0)
        if not self._is_plain:
            whole: dask.array.Array = da.from_delayed(
                self._delayed(_read_whole, alone), shape=shape, dtype=self._element().values
            )
            return whole
        # Blocks along the slowest axis are contiguous in the store.
        axis = len(shape) - 1 if self._number("fortran_order") else 0
        row_nbytes = self.nbytes // shape[axis]
        rows = max(_DASK_CHUNK_NBYTES // max(row_nbytes, 1), 1)
        blocks = [
            da.from_delayed(
                self._delayed(_read_block, alone, axis, begin, end),
                shape=tuple(end - begin if i == axis else n for i, n in enumerate(shape)),
                dtype=self._element().values,
            )
            for begin, end in _spans(shape[axis], rows)
        ]
        joined: dask.array.Array = da.concatenate(blocks, axis=axis)
        return joined

    def _delayed(self, function: Callable[..., Any], alone: Tensor, *args: int) -> Any:
        from dask.base import tokenize
        from dask.delayed import delayed

        step = self._step
        token = tokenize(str(step.address), str(step.key), step.fingerprint, self.row, *args)
        name = f"{function.__name__.lstrip('_')}-{token}"
        return delayed(function, pure=True)(alone, *args, dask_key_name=name)

    def edges(self, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the first and the last `count` elements, flat, in the order of the dump.

        Raises:
            UsageError: only statistics of it were dumped.
        """
        self._check_dumped()
        size = math.prod(self.shape)
        if not self._is_plain:
            flat = self.read().reshape(-1)
            return flat[:count], flat[max(size - count, 0) :]
        return self._flat(0, min(count, size)), self._flat(max(size - count, 0), size)

    @property
    def is_dumped(self) -> bool:
        """Whether its elements are there; else only statistics of it were dumped."""
        return self._label("kind") == RowKind.TENSOR.value

    @property
    def removed(self) -> str:
        """Why its elements are no longer there, though they were dumped; "" where they are."""
        return "" if self._step.has_payload(self.row) else str(self._step.commit.without_tensors)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in the index of this tensor as a flat dictionary of plain values."""
        known = self.statistics
        counts = {name: _count(getattr(known, name)) for name in COUNT_FIELDS}
        moments = {name: getattr(known, name) for name in FIELDS if name not in counts}
        fields = {name: getattr(self, name) for name in TENSOR_FIELDS}
        device_shape = list(self.device_shape) if self.device_shape is not None else None
        return {**fields, "shape": list(self.shape), "device_shape": device_shape, **counts, **moments}

    def _label(self, field: str) -> str:
        return str(self._step.tables.label(field)[self.row])

    def _number(self, field: str) -> int:
        return int(self._step.tables.number(field)[self.row])

    def _element(self) -> ElementType:
        return self._step.element(self.row)

    @property
    def _is_plain(self) -> bool:
        """Whether what is stored is what is read, so that a part of it can be."""
        return not self._element().is_packed and not self._step.is_in_device_layout(self.row)

    def _check_dumped(self) -> None:
        if not self.is_dumped:
            raise UsageError(
                f"{self._step.key}: {self.name}: only statistics were dumped, no elements",
                hint="`statistics` has them.",
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
            said = f"{flat.size} elements, which are not those of shape {shape}"
            raise DamagedStore(f"{self._step.key}: {self.name}: {said}") from exc

    def _flat(self, start: int, stop: int) -> npt.NDArray[Any]:
        dtype = self._element().to_numpy()
        return np.frombuffer(self._step.read(self.row, start * dtype.itemsize, stop * dtype.itemsize), dtype)

    def block(self, axis: int, begin: int, end: int) -> npt.NDArray[Any]:
        """Return rows `begin` to `end` of the slowest axis."""
        row = math.prod(self.shape) // self.shape[axis]
        shape = tuple(end - begin if i == axis else n for i, n in enumerate(self.shape))
        return self._shaped(self._flat(begin * row, end * row), shape)


#: The fields of `Tensor.to_dict` that are no statistics: part of the contract of `--json`.
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


def _count(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


def _spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, length, step):
        yield begin, min(begin + step, length)


def _read_whole(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.read()


def _read_block(tensor: Tensor, axis: int, begin: int, end: int) -> npt.NDArray[Any]:
    return tensor.block(axis, begin, end)
