"""What the index of a step has about one tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ingest.reader.indexed_step import IndexedStep, StepSource
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, Statistics
from workers.store.model import RowKind, tensor_name
from workers.store.tables import attributes_of, record_of


@dataclass(frozen=True, slots=True, eq=False)
class IndexedTensor:
    """One dumped tensor: where it comes from, and what is known about it. `Tensor` reads its elements."""

    _step: IndexedStep
    row: int
    """Its row in the index of its step."""

    def __repr__(self) -> str:
        place = f"rank={self.rank} step={self.step}"
        return f"<{type(self).__name__} {place} {self.name} {self.dtype}{list(self.shape)}>"

    @property
    def catalog(self) -> StepSource | None:
        """Where other steps of its store come from; None in a process to which its step was sent."""
        return self._step.catalog

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

    @property
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


def _known(count: float) -> float | None:
    return None if math.isnan(count) else count
