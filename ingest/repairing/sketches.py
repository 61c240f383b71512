"""The sketches of a step, made again from its payloads, or from the dump."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.step_histograms import read_entries
from ingest.reader.verify import WRONG_SKETCHES
from ingest.repairing.remaking import Remade
from ingest.repairing.result import Lost
from ingest.repairing.tables import RECOMPUTED_FROM
from workers.errors import DamagedStore, TensorsRemoved
from workers.model import StepKey
from workers.store import metadata, sketch_tables
from workers.store.entry_table import EntryTable
from workers.store.objects import ObjectStore
from workers.store.record import LEAF
from workers.tasks.sketch import sketches_of


def entries_of(step: Step) -> npt.NDArray[np.int64] | None:
    """Return the entries of the histograms of a step; None if they are damaged."""
    try:
        return read_entries(step)
    except DamagedStore:
        return None


def has_sketches(objects: ObjectStore, key: StepKey, generation: str) -> bool:
    """Return whether a generation has sketches, whatever the commit says."""
    prefix = f"{key.path}/{generation}"
    return bool(objects.get_many([f"{prefix}/{path}/{LEAF}" for path in sorted(sketch_tables.PATHS)]))


def damaged_tables(damages: Sequence[Damage]) -> list[EntryTable]:
    """Return the tables of sketches that are damaged, or contradict payloads."""
    return [
        table
        for table in sketch_tables.TABLES
        if any(
            damage.reason == WRONG_SKETCHES[table.path] or damage.path.endswith(f"/{table.chunk}")
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
    step: Step, damages: Sequence[Damage], remake: Callable[[], Remade | None]
) -> MendedSketches:
    """Return the damaged tables of sketches of a step, made from its payloads or from the dump.

    Args:
        step: the step, whose index is whole.
        damages: what is damaged of it.
        remake: returns the same generation with sketches as the dump gives it; called if it is needed.
    """
    damaged = damaged_tables(damages)
    if not damaged:
        return MendedSketches()
    documents: Mapping[str, metadata.Document] = {}
    chunks: Mapping[str, bytes] = {}
    origin = RECOMPUTED_FROM
    try:
        sketches = sketches_of(step)
        documents, chunks = sketches.documents, sketches.chunks
    except (DamagedStore, TensorsRemoved):
        if (remade := remake()) is not None:
            documents, chunks, origin = remade.assembled.nodes, remade.assembled.chunks, remade.origin
    same = [table for table in damaged if documents.get(table.path) == step.commit.nodes[table.path]]
    lost = tuple(
        Lost(f"{step.commit.prefix}/{table.path}", "neither its payloads nor a dump give the same")
        for table in damaged
        if table not in same
    )
    return MendedSketches({table.chunk: chunks[table.chunk] for table in same}, origin, lost)
