"""One tensor of a store."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workers.digest import digest
from workers.errors import DamagedStore
from workers.model import MIB
from workers.statistics import COUNT_FIELDS, FIELDS, Statistics

if TYPE_CHECKING:
    import dask.array

    from ingest.reader.store import Step

#: Bytes of one dask chunk, about.
_DASK_CHUNK_NBYTES = 32 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One dumped tensor: where it comes from, what is known of it, and a way to read it.

    Everything but `read` and `dask` costs nothing: it stands in the index of its step.
    """

    _step: Step
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
        ndim = self._number("ndim")
        return tuple(int(n) for n in self._step.tables.shape[self.row, :ndim])

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return self._number("nbytes")

    @property
    def digest(self) -> str:
        """XXH3-128 of the payload as it was dumped, in hexadecimal. Equal digest, equal bytes."""
        return bytes(self._step.tables.digest[self.row]).hex()

    @property
    def source(self) -> str:
        """The dump file, relative to the dump."""
        return self._label("source")

    @property
    def statistics(self) -> Statistics:
        """What is known of its values."""
        return Statistics(*(float(value) for value in self._step.tables.statistics[self.row]))

    def read(self, *, verify: bool = True) -> npt.NDArray[Any]:
        """Return the tensor as it was dumped: same bits, dtype and shape.

        Reads only the chunks that hold it. bfloat16 comes as `ml_dtypes.bfloat16`.

        Raises:
            DamagedStore: chunks are missing or damaged, or (unless `verify` is off) the digest differs.
        """
        payload = self._step.read(self.row)
        if verify and digest(payload).hex() != self.digest:
            raise DamagedStore(f"{self._step.key}: {self.name}: the digest does not match")
        flat: npt.NDArray[Any] = np.frombuffer(payload, self._dtype())
        return self._shaped(flat, self.shape)

    def dask(self) -> dask.array.Array:
        """Return the tensor as a dask array that reads only the ranges it needs, when it needs them."""
        import dask.array as da

        shape = self.shape
        if math.prod(shape) == 0 or not shape:
            small: dask.array.Array = da.from_array(self.read(), chunks=shape)
            return small
        # Blocks along the slowest axis are contiguous in the store.
        axis = len(shape) - 1 if self._number("fortran_order") else 0
        row_nbytes = self.nbytes // shape[axis]
        rows = max(_DASK_CHUNK_NBYTES // max(row_nbytes, 1), 1)
        blocks = [
            da.from_delayed(
                _delayed_block(self, axis, begin, end),
                shape=tuple(end - begin if i == axis else n for i, n in enumerate(shape)),
                dtype=self._dtype(),
            )
            for begin, end in _spans(shape[axis], rows)
        ]
        whole: dask.array.Array = da.concatenate(blocks, axis=axis)
        return whole

    def edges(self, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the first and the last `count` elements, flat, in the order of the dump."""
        size = math.prod(self.shape)
        return self._flat(0, min(count, size)), self._flat(max(size - count, 0), size)

    def as_dict(self) -> dict[str, Any]:
        """Return everything in the index of this tensor as a flat dictionary of plain values."""
        counts = {name: _count(getattr(self.statistics, name)) for name in COUNT_FIELDS}
        moments = {name: getattr(self.statistics, name) for name in FIELDS if name not in counts}
        fields = {name: getattr(self, name) for name in TENSOR_FIELDS}
        return {**fields, "shape": list(self.shape), **counts, **moments}

    def _label(self, field: str) -> str:
        return str(self._step.tables.label(field)[self.row])

    def _number(self, field: str) -> int:
        return int(self._step.tables.number(field)[self.row])

    def _dtype(self) -> np.dtype[Any]:
        return self._step.dtype(self.row)

    def _shaped(self, flat: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return flat.reshape(shape, order="F" if self._number("fortran_order") else "C")

    def _flat(self, start: int, stop: int) -> npt.NDArray[Any]:
        itemsize = self._dtype().itemsize
        return np.frombuffer(self._step.read(self.row, start * itemsize, stop * itemsize), self._dtype())

    def block(self, axis: int, begin: int, end: int) -> npt.NDArray[Any]:
        """Return rows `begin` to `end` of the slowest axis."""
        row = math.prod(self.shape) // self.shape[axis]
        shape = tuple(end - begin if i == axis else n for i, n in enumerate(self.shape))
        return self._shaped(self._flat(begin * row, end * row), shape)


#: The fields of `Tensor.as_dict` that are no statistics: part of the contract of `--json`.
TENSOR_FIELDS = (
    "rank",
    "step",
    "name",
    "net",
    "graph",
    "op_type",
    "op_name",
    "io",
    "slot",
    "occurrence",
    "timestamp",
    "format",
    "dtype",
    "declared_dtype",
    "shape",
    "nbytes",
    "digest",
    "source",
)


def _count(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


def _spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, length, step):
        yield begin, min(begin + step, length)


def _delayed_block(tensor: Tensor, axis: int, begin: int, end: int) -> Any:
    from dask.delayed import delayed

    # The tensor itself is not pickled into the graph: only where it is.
    reference = (tensor._step.address, tensor._step.key, tensor._step.fingerprint, tensor.row)  # noqa: SLF001
    return delayed(_read_block, pure=True)(reference, axis, begin, end)


def _read_block(reference: tuple[Any, ...], axis: int, begin: int, end: int) -> npt.NDArray[Any]:
    from ingest.reader.store import open_step

    address, key, fingerprint, row = reference
    return Tensor(open_step(address, key, fingerprint), row).block(axis, begin, end)
