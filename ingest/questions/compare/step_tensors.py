"""The tensors of one step of one rank, whether they are in a store or in a dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.operator_kinds import StepPart, parts_of
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.marginals import Marginal
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.operands import Operand


class Operands(Protocol):
    """Says where the elements of the tensors of one step are, and what else is known of these."""

    @property
    def marginals(self) -> Mapping[int, Mapping[int, Marginal]]:
        """By tensor and axis the marginals of those that have any.

        Raises:
            DamagedStore: they are damaged.
        """

    def operand(self, number: int, tensors: StepTensors) -> Operand:
        """Return a value that says where to read the elements of one tensor."""

    def full_name(self, number: int) -> str:
        """Return the name of a tensor's operator with its scope, as graph files give it; "" if not known."""

    def model_output(self, number: int) -> ModelOutput | None:
        """Return the output of the model that a tensor is in the graph of GE; None if it does not tell."""

    def attributes(self, number: int) -> dict[str, Any]:
        """Return what the file of a tensor holds besides its elements; see `Tensor.attributes`."""


@dataclass(frozen=True, eq=False)
class StepTensors:
    """The tensors of one step of one rank, in order of execution. All lists and arrays have this order."""

    key: StepKey
    keys: list[TensorKey]
    dtypes: list[str]
    shapes: Sequence[tuple[int, ...]]
    meanings: Sequence[tuple[Any, ...]]
    """What decides about a tensor besides its bytes: with equal digests and meanings, tensors are equal."""
    digests: npt.NDArray[np.uint8]
    """(tensor, 16), uint8; zeros if not known."""
    statistics: npt.NDArray[np.float64]
    """(tensor, len(FIELDS)), float64; NaN if not known."""
    dumped: npt.NDArray[np.bool_]
    """(tensor,): whether the elements were dumped, and not only statistics."""
    nbytes: npt.NDArray[np.int64]
    """(tensor,): bytes of the payload."""
    places: npt.NDArray[Any]
    """(tensor,): sorts in the order in which payloads are stored."""
    operands: Operands
    partial: str = ""
    """What the step lacks, if that is known only after reading it."""
    removed: frozenset[int] = frozenset()
    """The tensors whose elements were dumped, and have been removed from the store."""
    forms: npt.NDArray[np.object_] | None = None
    """(tensor, field): tensors of which these are equal have equal meanings, but not only they; None if that
    is not known."""

    @cached_property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return [key.name for key in self.keys]

    @cached_property
    def parts(self) -> list[StepPart]:
        """What the tensors are in training."""
        return parts_of(self.keys)

    @cached_property
    def contents(self) -> list[bytes]:
        """The digests as bytes."""
        digests: list[bytes] = np.ascontiguousarray(self.digests).view(f"V{DIGEST_BYTES}").ravel().tolist()
        return digests

    @cached_property
    def zeros(self) -> list[float]:
        """By tensor, the share of elements that are known to be zero."""
        count, zeros = (self.statistics[:, FIELDS.index(name)] for name in ("count", "zero_count"))
        shares: list[float] = np.nan_to_num(zeros / np.maximum(count, 1)).tolist()
        return shares

    @cached_property
    def sizes(self) -> list[float]:
        """By tensor, the root mean square of the elements; NaN if it is not known."""
        count, norms = (self.statistics[:, FIELDS.index(name)] for name in ("count", "l2_norm"))
        sizes: list[float] = (norms / np.sqrt(np.maximum(count, 1))).tolist()
        return sizes

    def operand(self, number: int) -> Operand:
        """Return a value that says where to read the elements of one tensor."""
        return self.operands.operand(number, self)
