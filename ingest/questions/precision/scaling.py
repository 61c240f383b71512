"""By what a tensor is multiplied before it is cast, as recipes for float8 choose it.

The recipes of NVIDIA's Transformer Engine are called so, too (transformer_engine.common.recipe:
`DelayedScaling`, `Float8CurrentScaling`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workers.arrays.number_formats import NumberFormat
from workers.arrays.sketches.rounding import scale_for
from workers.errors import UsageError

NONE, CURRENT, DELAYED = "none", "current", "delayed"
#: `none`: cast as it is. `current`: the largest magnitude of the tensor becomes the largest of the format.
#: `delayed`: so does the largest magnitude of the steps before, of those that were dumped.
SCALINGS = (NONE, CURRENT, DELAYED)
#: Steps that delayed scaling looks back, as Transformer Engine does by default (`amax_history_len`).
HISTORY = 1024


def checked_scaling(text: str) -> str:
    """Return the scaling that a user named.

    Raises:
        UsageError: the scaling is unknown.
    """
    plain = text.strip().lower()
    if plain not in SCALINGS:
        raise UsageError(f"{text!r:.80} is not a scaling", hint=f"Scalings: {', '.join(SCALINGS)}.")
    return plain


@dataclass(slots=True)
class Scaling:
    """The scales of one tensor of one rank, step by step."""

    how: str
    powers_of_two: bool
    _history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def advance(self, largest: float) -> float:
        """Take the largest magnitude of the next step; return the one that its scale is chosen for, or 0."""
        if self.how == CURRENT:
            return largest
        before = max(self._history, default=0.0)
        self._history.append(largest)
        return before if self.how == DELAYED else 0.0

    def scale(self, largest: float, target: NumberFormat) -> float:
        """Return the scale for a magnitude that `advance` returned; 1 if it is 0."""
        return scale_for(largest, target, powers_of_two=self.powers_of_two)
