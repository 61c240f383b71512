"""The tensors from which, and to which, the content of another one passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingest.reader.flow.step_flow import Passing
    from ingest.reader.tensor import Tensor


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

    @classmethod
    def of(cls, tensor: Tensor, row: int, passing: Passing) -> Neighbour:
        """Return the tensor of another row of the same step."""
        return cls(tensor.of_row(row), passing.by, passing.is_certain)

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
