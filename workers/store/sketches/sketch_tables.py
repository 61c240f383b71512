"""The arrays of a generation that hold sketches: what is kept of the values of tensors besides statistics."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.errors import DamagedStore
from workers.store import metadata
from workers.store.sketches import block_digests, histograms, marginals
from workers.store.sketches.marginals import StepMarginals


@dataclass(frozen=True, slots=True)
class SketchKind:
    """One kind of sketches: the arrays that hold it, and its name in messages."""

    name: str
    arrays: tuple[str, ...]
    """Their paths in the generation."""

    @property
    def first_chunk_keys(self) -> list[str]:
        """The keys of the first chunk of each of its arrays."""
        return [f"{array}/c/0/0" for array in self.arrays]

    def chunk_keys(self, nodes: Mapping[str, metadata.Document], where: str) -> list[str]:
        """Return the keys of its chunks in the generation.

        Raises:
            DamagedStore: the metadata is damaged; `where` names the step.
        """
        if self in ARRAYS_OF_MARGINALS:
            return ARRAYS_OF_MARGINALS[self].chunk_keys(nodes, where)
        return [f"{array}/c/0/0" for array in self.arrays if array in nodes]


HISTOGRAMS = SketchKind("histogram", (histograms.TABLE.path,))
BLOCK_DIGESTS = SketchKind("digests of its blocks", (block_digests.TABLE.path,))
MARGINALS = SketchKind("marginals", marginals.ALL.paths)
MARGINALS_OF_LARGE = SketchKind("marginals of large tensors", marginals.LARGE.paths)
KINDS = (HISTOGRAMS, BLOCK_DIGESTS, MARGINALS, MARGINALS_OF_LARGE)
ARRAYS_OF_MARGINALS = {MARGINALS: marginals.ALL, MARGINALS_OF_LARGE: marginals.LARGE}
PATHS = frozenset(array for kind in KINDS for array in kind.arrays)


def has_sketches(nodes: Container[str]) -> bool:
    """Return whether a generation with these nodes has sketches, even if only some, of an older version."""
    return any(path in nodes for path in PATHS)


def marginals_in(nodes: Container[str]) -> MarginalScope | None:
    """Return the tensors that have marginals in a generation with these nodes; None if it has no sketches."""
    if not has_sketches(nodes):
        return None
    arrays = marginals.arrays_of(nodes)
    return MarginalScope.NONE if arrays is None else arrays.scope


def has_all_sketches(nodes: Container[str]) -> bool:
    """Return whether it has all that `dump-ingest sketch` makes; by default, small tensors lack marginals."""
    return marginals.ALL.axes.path in nodes


def chunk_keys(nodes: Mapping[str, metadata.Document]) -> list[str]:
    """Return the keys of the chunks of all sketches in a generation; none of those with damaged metadata."""
    keys: list[str] = []
    for kind in KINDS:
        try:
            keys += kind.chunk_keys(nodes, "")
        except DamagedStore:
            continue
    return keys


@dataclass(frozen=True, slots=True, eq=False)
class StepSketches:
    """The histograms and the marginals of a step as they are stored."""

    histograms: npt.NDArray[np.int64] = field(default_factory=histograms.TABLE.empty)
    """Entries of `workers.store.sketches.histograms.TABLE`."""
    marginals: StepMarginals = field(default_factory=StepMarginals.none)
    scope: MarginalScope = MarginalScope.NONE
    """The tensors of which marginals were made."""
