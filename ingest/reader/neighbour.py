"""The tensors from which, and to which, the content of another one passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ingest.reader.indexed_tensor import IndexedTensor

_Tensor = TypeVar("_Tensor", bound=IndexedTensor)


@dataclass(frozen=True, slots=True)
class Neighbour(Generic[_Tensor]):
    """A tensor from which, or to which, the content of another one passed."""

    tensor: _Tensor
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
        from ingest.reader.flow.step_flow import original_names_of  # deferred: as in `_flow_of`

        return original_names_of(self.tensor)

    def to_dict(self) -> dict[str, Any]:
        """Return a flat dictionary of plain values."""
        return {
            "name": self.tensor.name,
            "graph": self.tensor.graph,
            "op_type": self.tensor.op_type,
            "op_name": self.tensor.op_name,
            "fused_from": list(self.fused_from),
            "by": self.by,
            "is_certain": self.is_certain,
        }
