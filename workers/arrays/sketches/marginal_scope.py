"""The tensors of which marginals are kept: none, large ones, or all that may have any."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

#: Tensors of fewer elements have none: what is done once for each tensor would take longer than the pass.
LEAST_ELEMENTS: Final = 4096
#: Tensors of at least this many elements are large. They take most of the bytes of large models, and few are
#: so small that what is done once for each of them counts.
LARGE_ELEMENTS: Final = 256 * 1024


class MarginalScope(StrEnum):
    """The tensors of which marginals are kept."""

    NONE = "none"
    LARGE = "large"
    ALL = "all"

    def includes(self, elements: float) -> bool:
        """Return whether a tensor with this number of elements may have marginals."""
        if self is MarginalScope.NONE:
            return False
        return elements >= (LARGE_ELEMENTS if self is MarginalScope.LARGE else LEAST_ELEMENTS)
