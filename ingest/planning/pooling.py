"""Which tensors of a step go into its pool, and how they are packed there. Pure arithmetic.

Ranks agree on the packing without knowing of each other: it is a function of what an earlier step shows that
they share. See docs/design/016-shared-shards.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from workers.dump.paths import to_text
from workers.model import MIB
from workers.store.blocks import TENSOR_KINDS, TensorKey
from workers.store.model import ArraySpec, Grid, RowKind
from workers.store.shards import has_sparse_chunks
from workers.tasks.model import Entry

#: A class of ranks is pooled if what it shares of one type comes to this many bytes: it takes two requests.
_FEWEST_NBYTES = 4 * MIB
#: The mean size of an array in the pool, at most. One tensor that differs spoils one array.
_MEAN_NBYTES = 32 * MIB


class SharedTensor(NamedTuple):
    """What an earlier step shows of a tensor that other ranks had, too."""

    ranks: bytes
    """Stands for the set of the ranks that had the same digest under the same name."""
    unit: str
    """The least name of the tensors of the rank that were equal to it, and shared by the same ranks."""


Shared: TypeAlias = Mapping[TensorKey, SharedTensor]


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """Rows that go into the pool together, in the order of packing."""

    spec: ArraySpec
    """Type and chunk; its shard is the most that an array holds."""
    rows: tuple[int, ...]


def shared_tensors(
    keys: Sequence[TensorKey], digest: npt.NDArray[np.uint8], place: int
) -> dict[TensorKey, SharedTensor]:
    """Return which tensors of a rank other ranks had, too, in one step.

    Every rank of such a set of ranks gets the same sets and the same units.

    Args:
        keys: the tensors.
        digest: (rank, tensor, 16), zeros for tensors that a rank does not have.
        place: of the rank along the first axis.
    """
    own = digest[place]
    same = (digest == own).all(axis=2) & own.any(axis=1)
    columns = np.flatnonzero(np.count_nonzero(same, axis=0) > 1).tolist()
    # Sets of places would depend on the order of the ranks; it is the same for all who see the same cubes.
    sets = np.packbits(same, axis=0)
    classes = {column: sets[:, column].tobytes() for column in columns}
    units: dict[tuple[bytes, bytes], str] = {}
    for column in columns:
        unit = (classes[column], own[column].tobytes())
        name = _text(keys[column])
        units[unit] = min(units.get(unit, name), name)
    return {
        keys[column]: SharedTensor(classes[column], units[classes[column], own[column].tobytes()])
        for column in columns
    }


def _text(key: TensorKey) -> str:
    return "\0".join(map(str, key))


def pool_groups(entries: Sequence[Entry], shared: Shared, grid: Grid) -> list[PoolGroup]:
    """Return what of a step goes into the pool.

    Args:
        entries: the rows of its index.
        shared: what is expected to be shared.
        grid: sizes of chunks and shards.
    """
    if not shared:
        return []
    sets: dict[tuple[bytes, str], dict[str, list[int]]] = {}
    for row, key in _candidates(entries, grid):
        if (expected := shared.get(key)) is not None:
            units = sets.setdefault((expected.ranks, entries[row].array), {})
            units.setdefault(expected.unit, []).append(row)
    return [
        PoolGroup(_spec(entries[rows[0]], grid), rows)
        for _, units in sorted(sets.items())
        for rows in _arrays(units, entries, grid)
    ]


def packing_digest(groups: Sequence[PoolGroup]) -> str:
    """Return the part of the name of a generation that says what of it is in the pool: 16 hex digits."""
    text = "\n".join(f"{group.spec.path} {' '.join(map(str, group.rows))}" for group in groups)
    return xxhash.xxh3_64(text.encode()).hexdigest()


def _candidates(entries: Sequence[Entry], grid: Grid) -> Iterator[tuple[int, TensorKey]]:
    """Yield the rows that may go into the pool, and the key of each in the consolidated view."""
    # A view shares the place of the tensor that it is a part of, and that is in its generation.
    viewed = {entry.source.path for entry in entries if entry.view is not None}
    for row, key in _keys(entries):
        entry = entries[row]
        is_whole = entry.kind is RowKind.TENSOR and entry.header is not None and entry.readable
        if is_whole and 0 < entry.nbytes <= grid.shard_nbytes and entry.source.path not in viewed:
            yield row, key


def _keys(entries: Iterable[Entry]) -> Iterator[tuple[int, TensorKey]]:
    """Yield each row that is a tensor with its key, as `workers.store.blocks.tensors_of` makes it."""
    copies: dict[TensorKey, int] = {}
    text: dict[str, str] = {}
    for row, entry in enumerate(entries):
        if entry.kind.value in TENSOR_KINDS:
            name = entry.name
            net, graph, op_type, op_name, io = (
                text.get(part) or text.setdefault(part, to_text(part))
                for part in (name.net, name.graph, name.op_type, name.op_name, name.io)
            )
            key = TensorKey(net, graph, op_type, op_name, io, name.slot, name.occurrence)
            copy = copies[key] = copies.get(key, -1) + 1
            yield row, key._replace(copy=copy) if copy else key


def _arrays(
    units: Mapping[str, Sequence[int]], entries: Sequence[Entry], grid: Grid
) -> Iterator[tuple[int, ...]]:
    """Distribute units over arrays, and yield the rows of each array."""
    nbytes = {unit: entries[rows[0]].nbytes for unit, rows in units.items()}
    total = sum(nbytes.values())
    if total < _FEWEST_NBYTES:
        return
    arrays = 1 << math.ceil(math.log2(max(total / min(_MEAN_NBYTES, grid.shard_nbytes), 1)))
    members: dict[int, list[str]] = {}
    for unit in sorted(units):
        members.setdefault(xxhash.xxh3_64_intdigest(unit.encode()) % arrays, []).append(unit)
    for _, names in sorted(members.items()):
        yield tuple(row for unit in names for row in units[unit])


def _spec(entry: Entry, grid: Grid) -> ArraySpec:
    element = entry.header.element if entry.header else None
    itemsize = element.stored_itemsize if element else 1
    chunk = max(grid.chunk_nbytes // itemsize, 1)
    return ArraySpec(
        path=entry.array,
        data_type=element.stored_name if element else "uint8",
        itemsize=itemsize,
        big_endian=bool(element and element.is_native and element.big_endian),
        chunk=chunk,
        chunks_per_shard=max(grid.shard_nbytes // (chunk * itemsize), 1),
        sparse=element is not None and has_sparse_chunks(element.stored_name),
    )
