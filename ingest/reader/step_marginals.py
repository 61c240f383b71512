"""The marginals of one step of one rank: sums, norms and largest magnitudes along the axes of its tensors."""

from __future__ import annotations

from ingest.reader.step_histograms import read_entries
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.arrays.sketches.marginals import Marginal
from workers.store.sketches import marginals
from workers.store.sketches.marginals import MarginalArrays, StepMarginals
from workers.store.sketches.sketch_tables import StepSketches, marginals_in
from workers.store.step import StoredStep


def marginals_of(step: StoredStep) -> dict[int, dict[int, Marginal]]:
    """Return by row and axis the marginals of each tensor that has any. Takes two requests besides the index.

    Tensors of zeros have none, nor have small ones, those of other types than floats of 16 bits and more, and
    those of steps that were committed without marginals.

    Raises:
        DamagedStore: the marginals are missing or damaged.
        StepRemoved: the step was removed since it was opened.
    """
    with step.asking_again():
        return read_marginals(step).by_row(step.tables)


def read_marginals(step: StoredStep, arrays: MarginalArrays | None = None) -> StepMarginals:
    """Return the marginals of a step as they are stored; none if it was committed without them.

    Args:
        step: the step.
        arrays: which arrays to read; default: the first of those that it has.

    Raises:
        DamagedStore: they are missing or damaged.
    """
    nodes, prefix, where = step.commit.nodes, step.commit.prefix, str(step.key)
    arrays = arrays or marginals.arrays_of(nodes)
    if arrays is None:
        return StepMarginals.none()
    keys = arrays.chunk_keys(nodes, where)
    objects = step.objects.get_many([f"{prefix}/{key}" for key in keys]) if keys else {}
    chunks = {key.removeprefix(f"{prefix}/"): data for key, data in objects.items()}
    return arrays.decode(nodes, chunks, where, step.commit.record.checksums)


def read_sketches(step: StoredStep) -> StepSketches:
    """Read the sketches of a step that rules and conditions need.

    Raises:
        DamagedStore: something of them is missing or damaged.
    """
    scope = marginals_in(step.commit.nodes) or MarginalScope.NONE
    return StepSketches(read_entries(step), read_marginals(step), scope)
