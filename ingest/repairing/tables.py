"""The index and the statistics of a step: which tables are damaged, and what they can be made from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.verifying.verify import STATISTICS_DO, WRONG_DIGEST, WRONG_STATISTICS
from ingest.repairing.remaking import Remade
from workers.arrays.digest import new_digest
from workers.errors import DamagedStore
from workers.model import MIB
from workers.store import metadata, tables
from workers.store.commit import Commit
from workers.store.objects import ObjectStore
from workers.store.recomputed import RecomputedStatistics
from workers.store.table_checksums import checksums_of
from workers.store.tables import Tables

_PIECE_NBYTES = 16 * MIB
DIGEST_CHUNK, STATISTICS_CHUNK = "index/digest/c/0/0", "statistics/c/0/0"
#: What follows from the payloads, which have checksums of their own.
_RECOMPUTED = frozenset([DIGEST_CHUNK, STATISTICS_CHUNK])
NO_SUSPECTS: Mapping[str, bool] = MappingProxyType({})
RECOMPUTED_FROM = "the payloads, computed again"


@dataclass(frozen=True, slots=True)
class MendedTables:
    """The tables of a step as they are to be."""

    tables: Tables
    chunks: Mapping[str, bytes]
    """The chunks that are to be written, by path in the generation."""
    origin: str


def mend_tables(
    objects: ObjectStore,
    committed: Commit,
    remake: Callable[[], Remade | None],
    suspects: Mapping[str, bool] = NO_SUSPECTS,
) -> MendedTables:
    """Return the tables of a step: what is damaged is made again from the dump, or from the payloads.

    Args:
        objects: the store.
        committed: the commit.
        remake: returns the same generation as the dump gives it; called if it is needed.
        suspects: tables that contradict payloads although they can be decoded; see `doubtful_tables`.

    Raises:
        DamagedStore: a table is damaged, and nothing is known that it can be made from; or tables are only
            suspected, and neither the dump nor the payloads tell whether they are wrong.
    """
    where, prefix, nodes = str(committed.key), committed.prefix, committed.packed_nodes
    contents = objects.get_many([f"{prefix}/{key}" for key in tables.chunk_keys()])
    stored = {key[len(prefix) + 1 :]: data for key, data in contents.items()}
    arrays, damaged = tables.decode_each(nodes, stored, where, committed.record.checksums)
    try:
        decoded = _checked(nodes, stored, committed, committed.record.checksums)
        if not suspects:
            return MendedTables(decoded, {}, "")
        problem = DamagedStore(f"{where}: its index contradicts its payloads")
    except DamagedStore as exc:
        problem = exc
    remade = remake()
    if remade is not None:
        return _from_dump(remade, committed, stored, damaged)
    if suspects and all(suspects.values()) and len(suspects) < len(_RECOMPUTED):
        return _from_payloads(objects, committed, arrays, suspects)
    if damaged and damaged.keys() <= _RECOMPUTED:
        return _from_payloads(objects, committed, arrays, damaged.keys())
    raise problem


def _checked(
    nodes: dict[str, metadata.Document],
    chunks: Mapping[str, bytes],
    committed: Commit,
    checksums: Mapping[str, int],
) -> Tables:
    where = str(committed.key)
    decoded = tables.decode(nodes, dict(chunks), where, checksums)
    return tables.check(decoded, nodes, where, has_tensors=committed.without_tensors is None)


def _from_dump(
    remade: Remade, committed: Commit, stored: Mapping[str, bytes], damaged: Mapping[str, str]
) -> MendedTables:
    """Take the damaged tables from the dump; or all that differ, if each of them can be decoded."""
    made = {key: remade.assembled.chunks[key] for key in tables.chunk_keys()}
    chosen = damaged or [key for key in made if stored.get(key) != made[key]]
    chunks = {key: made[key] for key in chosen}
    for key in chunks:
        node = key.removesuffix("/c/0/0")
        if remade.assembled.nodes[node] != committed.nodes.get(node):
            raise DamagedStore(f"{committed.key}: {node} has another shape in the dump than in the commit")
    checksums = {**committed.record.checksums, **checksums_of(chunks)}
    return MendedTables(
        _checked(committed.packed_nodes, {**stored, **chunks}, committed, checksums), chunks, remade.origin
    )


def _from_payloads(
    objects: ObjectStore,
    committed: Commit,
    arrays: Mapping[str, npt.NDArray[Any]],
    damaged: Collection[str],
) -> MendedTables:
    """Compute digests and statistics again.

    Raises:
        DamagedStore: a payload is damaged, or statistics came from a table of the dump.
    """
    rows = len(arrays["labels"])
    known: dict[str, Any] = {
        "digest": tables.empty_digests(rows),
        "statistics": tables.empty_statistics(rows),
        **arrays,
    }
    built = Tables(**known)
    where = str(committed.key)
    tables.check(built, committed.packed_nodes, where, has_tensors=committed.without_tensors is None)
    step = Step(objects, committed, built)
    given = set(built.label("statistics_from")) - {"", "computed"}
    if STATISTICS_CHUNK in damaged and given:
        raise DamagedStore(f"{where}: its statistics come from {min(given)}, which is not decoded here")
    digest, statistics = built.digest.copy(), built.statistics.copy()
    chosen = [row for row in np.flatnonzero(built.number("offset") >= 0).tolist() if step.has_payload(row)]
    for row, pieces in step.payloads(chosen, _PIECE_NBYTES):
        running, recomputed = new_digest(), RecomputedStatistics(step, row)
        for piece in pieces:
            running.update(piece)
            recomputed.update(piece)
        if DIGEST_CHUNK in damaged:
            digest[row] = np.frombuffer(running.digest(), np.uint8)
        values = recomputed.result()
        if STATISTICS_CHUNK in damaged and values is not None:
            statistics[row] = values
    mended = Tables(built.labels, built.numbers, built.shape, digest, statistics)
    _, chunks = tables.encode(mended)
    return MendedTables(mended, {key: chunks[key] for key in damaged}, RECOMPUTED_FROM)


def doubtful_tables(damages: Sequence[Damage], checksums: Mapping[str, int]) -> dict[str, bool]:
    """Return the tables that contradict payloads whose checksums are right.

    Args:
        damages: what is damaged of the step.
        checksums: what the commit lists: these tables are beyond doubt.

    Returns:
        By path of the chunk, whether the table is certainly wrong, because the other one agrees with the
        payloads. If none does, the payloads may be those of another step.
    """
    doubtful: dict[str, bool] = {}
    for damage in damages:
        if damage.source and damage.reason.startswith(WRONG_DIGEST):
            is_certain = damage.reason.endswith(STATISTICS_DO)
            doubtful[DIGEST_CHUNK] = doubtful.get(DIGEST_CHUNK, True) and is_certain
        if damage.source and damage.reason.startswith(WRONG_STATISTICS):
            doubtful[STATISTICS_CHUNK] = True
    return {path: is_certain for path, is_certain in doubtful.items() if path not in checksums}
