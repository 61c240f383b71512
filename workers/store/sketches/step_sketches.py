"""What rules and conditions need of the sketches of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.store.sketches import histograms
from workers.store.sketches.marginals import StepMarginals


@dataclass(frozen=True, slots=True, eq=False)
class StepSketches:
    """The histograms and the marginals of a step as they are stored."""

    histograms: npt.NDArray[np.int64] = field(default_factory=histograms.TABLE.empty)
    """Entries of `workers.store.sketches.histograms.TABLE`."""
    marginals: StepMarginals = field(default_factory=StepMarginals.none)
    scope: MarginalScope = MarginalScope.NONE
    """The tensors of which marginals were made."""
