"""The histograms of a step, made again from its payloads, or from the dump."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.step_histograms import read_entries
from ingest.reader.verify import WRONG_HISTOGRAM
from ingest.repairing.remaking import Remade
from ingest.repairing.tables import RECOMPUTED_FROM
from workers.errors import DamagedStore, TensorsRemoved
from workers.model import StepKey
from workers.store import histograms, metadata
from workers.store.objects import ObjectStore
from workers.store.record import LEAF
from workers.tasks.sketch import entries_from_payloads


def entries_of(step: Step) -> npt.NDArray[np.int64] | None:
    """Return the entries of the histograms of a step; None if they are damaged."""
    try:
        return read_entries(step)
    except DamagedStore:
        return None


def has_histograms(objects: ObjectStore, key: StepKey, generation: str) -> bool:
    """Return whether a generation has histograms, whatever the commit says."""
    return objects.get(f"{key.path}/{generation}/{histograms.PATH}/{LEAF}") is not None


def is_of_histograms(damage: Damage) -> bool:
    """Return whether a damage is of the histograms of a step."""
    return damage.reason == WRONG_HISTOGRAM or damage.path.endswith(f"/{histograms.CHUNK}")


def mend_histograms(
    step: Step, damages: Sequence[Damage], remake: Callable[[], Remade | None]
) -> tuple[bytes, str] | None:
    """Return the chunk of the histograms of a step and what it is made from; None if they are undamaged.

    Args:
        step: the step, whose index is whole.
        damages: what is damaged of it.
        remake: returns the same generation with histograms as the dump gives it; called if it is needed.

    Raises:
        DamagedStore: nothing is known that they can be made from.
    """
    if not any(map(is_of_histograms, damages)):
        return None
    documents: dict[str, metadata.Document] = {}
    chunks: dict[str, bytes] = {}
    origin = RECOMPUTED_FROM
    try:
        documents, chunks = histograms.encode(entries_from_payloads(step))
    except (DamagedStore, TensorsRemoved):
        if (remade := remake()) is not None:
            documents, chunks = dict(remade.assembled.nodes), dict(remade.assembled.chunks)
            origin = remade.origin
    if documents.get(histograms.PATH) != step.commit.nodes[histograms.PATH]:
        raise DamagedStore(f"{step.key}: neither its payloads nor a dump give the same histograms")
    return chunks[histograms.CHUNK], origin
