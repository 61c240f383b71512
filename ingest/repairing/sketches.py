"""The sketches of a step, made again from its payloads, or from the dump."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.step_histograms import read_entries
from ingest.reader.verify import WRONG_SKETCHES
from ingest.repairing.remaking import Remade
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


def mend_sketches(
    step: Step, damages: Sequence[Damage], remake: Callable[[], Remade | None]
) -> tuple[Mapping[str, bytes], str]:
    """Return the chunks of damaged tables of sketches by path in the generation, and what they are made from.

    Args:
        step: the step, whose index is whole.
        damages: what is damaged of it.
        remake: returns the same generation with sketches as the dump gives it; called if it is needed.

    Raises:
        DamagedStore: nothing is known that they can be made from.
    """
    damaged = damaged_tables(damages)
    documents: Mapping[str, metadata.Document] = {}
    chunks: Mapping[str, bytes] = {}
    if not damaged:
        return chunks, ""
    origin = RECOMPUTED_FROM
    try:
        sketches = sketches_of(step)
        documents, chunks = sketches.documents, sketches.chunks
    except (DamagedStore, TensorsRemoved):
        if (remade := remake()) is not None:
            documents, chunks, origin = remade.assembled.nodes, remade.assembled.chunks, remade.origin
    for table in damaged:
        if documents.get(table.path) != step.commit.nodes[table.path]:
            raise DamagedStore(f"{step.key}: neither its payloads nor a dump give the same {table.path}")
    return {table.chunk: chunks[table.chunk] for table in damaged}, origin
