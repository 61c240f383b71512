"""The sketches of a step, made again from its payloads, or from the dump."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.step_marginals import read_sketches
from ingest.reader.verifying.verify import WRONG_SKETCHES
from ingest.repairing.remaking import Remade
from ingest.repairing.result import Lost
from ingest.repairing.tables import RECOMPUTED_FROM
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.errors import DamagedStore, TensorsRemoved
from workers.model import StepKey
from workers.store import metadata
from workers.store.objects import ObjectStore
from workers.store.record import LEAF
from workers.store.sketches import sketch_tables
from workers.store.sketches.sketch_tables import SketchKind
from workers.store.sketches.step_sketches import StepSketches
from workers.tasks.sketch import sketches_of


def sketches_for_rules(step: Step) -> StepSketches | None:
    """Return what rules need of the sketches of a step; None if they are damaged."""
    try:
        return read_sketches(step)
    except DamagedStore:
        return None


def stored_marginals(objects: ObjectStore, key: StepKey, generation: str) -> MarginalScope | None:
    """Return the tensors that have marginals in a generation, by its objects; None if it has no sketches."""
    leaves = {f"{key.path}/{generation}/{path}/{LEAF}": path for path in sorted(sketch_tables.PATHS)}
    return sketch_tables.marginals_in({leaves[leaf] for leaf in objects.get_many(list(leaves))})


def damaged_kinds(step: Step, damages: Sequence[Damage]) -> list[SketchKind]:
    """Return the kinds of sketches of a step that are damaged, or contradict payloads."""
    prefix = step.commit.prefix
    return [
        kind
        for kind in sketch_tables.KINDS
        if any(
            damage.reason == WRONG_SKETCHES[kind]
            or any(damage.path.startswith(f"{prefix}/{array}/c/") for array in kind.arrays)
            for damage in damages
        )
    ]


@dataclass(frozen=True, slots=True)
class MendedSketches:
    """The tables of sketches that a step should have."""

    chunks: Mapping[str, bytes] = field(default_factory=dict)
    """The chunks that are to be written, by path in the generation."""
    origin: str = ""
    lost: tuple[Lost, ...] = ()
    """The tables that nothing is known for."""


def mend_sketches(
    step: Step, damages: Sequence[Damage], remake: Callable[[MarginalScope], Remade | None]
) -> MendedSketches:
    """Return the damaged tables of sketches of a step, made from its payloads or from the dump.

    Args:
        step: the step, whose index is whole.
        damages: what is damaged of it.
        remake: returns the same generation as the dump gives it, with sketches, and with marginals of the
            given tensors; called if it is needed.
    """
    damaged = damaged_kinds(step, damages)
    if not damaged:
        return MendedSketches()
    try:
        wanted = [arrays for kind, arrays in sketch_tables.ARRAYS_OF_MARGINALS.items() if kind in damaged]
        sketches, origin = sketches_of(step, wanted), RECOMPUTED_FROM
        documents, chunks = sketches.documents, sketches.chunks
    except (DamagedStore, TensorsRemoved):
        documents, chunks, origin = _from_dump(damaged, remake)
    nodes = step.commit.nodes
    same = [
        kind for kind in damaged if all(documents.get(array) == nodes.get(array) for array in kind.arrays)
    ]
    lost = tuple(
        Lost(f"{step.commit.prefix}/{kind.arrays[-1]}", "neither its payloads nor a dump give the same")
        for kind in damaged
        if kind not in same
    )
    keys = [key for kind in same for key in kind.chunk_keys(nodes, str(step.key))]
    return MendedSketches({key: chunks[key] for key in keys}, origin, lost)


def _from_dump(
    kinds: Sequence[SketchKind], remake: Callable[[MarginalScope], Remade | None]
) -> tuple[dict[str, metadata.Document], dict[str, bytes], str]:
    """Return the metadata and the chunks of these kinds of sketches, and the dump that they come from."""
    arrays, origin = sketch_tables.ARRAYS_OF_MARGINALS, ""
    documents: dict[str, metadata.Document] = {}
    chunks: dict[str, bytes] = {}
    for scope in [arrays[kind].scope for kind in kinds if kind in arrays] or [MarginalScope.NONE]:
        if (remade := remake(scope)) is not None:
            documents |= remade.assembled.nodes
            chunks |= remade.assembled.chunks
            origin = remade.origin
    return documents, chunks, origin
