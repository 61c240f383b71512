"""Which tensors of a step go into its pool, and how they are packed there. Pure arithmetic.

Ranks agree on the packing without knowing of each other: it is a function of what an earlier step shows that
they share. See docs/design/016-shared-shards.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from ingest.planning.inspection import SAMPLE_BYTES, sample_digest
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.digest import digest as digest_of
from workers.arrays.dtypes import ElementType
from workers.dump.paths import to_text
from workers.model import MIB, grouped
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import ArraySpec, Grid, RowKind
from workers.store.packed.chunks import sparse_rule
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
    kind: str = ""
    """The kind of its unit, for packing: "" if surely shared, else a kind whose tensors may not all be."""
    is_firm: bool = True
    """Whether it belongs to its unit; otherwise only if it is still equal to one that does."""


Shared: TypeAlias = Mapping[TensorKey, SharedTensor]
#: What is packed together: a set of ranks, the array of a type, and a kind.
_Place: TypeAlias = tuple[bytes, str, str]
#: By name of a unit, the rows that are equal.
_Units: TypeAlias = dict[str, list[int]]
#: Payloads of more bytes are looked at in three places before they are taken for equal.
_PROBED_NBYTES = 64 * 1024
#: What payloads that begin with zeros have in common, of those that are larger than the sample.
_ZEROS = sample_digest(bytes(SAMPLE_BYTES))
#: In place of a kind: all of which there is too little.
_OTHERS = "\0"


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """Rows that go into the pool together, in the order of packing."""

    spec: ArraySpec
    """Type and chunk; its shard is the most that an array holds."""
    rows: tuple[int, ...]


def shared_tensors(
    keys: Sequence[TensorKey], digest: npt.NDArray[np.uint8], place: int
) -> dict[TensorKey, SharedTensor]:
    """Return the tensors of a rank that other ranks also had, in one step.

    Every rank of such a set of ranks gets the same sets, units and kinds.

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
    units = grouped(((classes[column], own[column].tobytes()), column) for column in columns)
    unsure = _unsure_kinds(
        keys, np.asarray(digest.any(axis=2)), same, {classes[column]: column for column in columns}
    )
    return {
        keys[column]: tensor
        for (ranks, _), members in units.items()
        for column, tensor in _unit(keys, members, ranks, unsure[ranks])
    }


def shared_in_step(
    ranks: Sequence[tuple[Sequence[Entry], Sequence[int | None]]],
    grid: Grid,
    probe: Callable[[int, Entry], int | None],
) -> list[dict[TensorKey, SharedTensor]]:
    """Return for each rank the tensors that other ranks seem to have, too, before any of them is read.

    Two tensors of the same name seem equal if their types, sizes and first bytes are; of large ones, also
    bytes in the middle and at the end.

    Args:
        ranks: the rows of each rank in one step; and of each row, what equal payloads have in common.
        grid: sizes of chunks and shards.
        probe: returns what equal payloads of a rank, by its place, have in common in the middle and at the
            end; None if that cannot be read. It is asked for large ones that seem equal so far.
    """
    looks = [
        {key: _Look(entry, sample) for key, entry, sample in _known(entries, samples, grid)}
        for entries, samples in ranks
    ]
    count = Counter((key, look.beginning) for of_rank in looks for key, look in of_rank.items())
    keys = list(dict.fromkeys(key for of_rank in looks for key in of_rank))
    digest = np.zeros((len(looks), len(keys), DIGEST_BYTES), np.uint8)
    for place, of_rank in enumerate(looks):
        for column, key in enumerate(keys):
            # Of what nobody else seems to have, only that it is there counts.
            if (look := of_rank.get(key)) is not None and count[key, look.beginning] > 1:
                rest = probe(place, look.entry) if look.entry.nbytes > _PROBED_NBYTES else None
                digest[place, column] = np.frombuffer(
                    digest_of(repr((look.beginning, rest)).encode()), np.uint8
                )
            elif look is not None:
                digest[place, column] = np.frombuffer(digest_of(f"{place}".encode()), np.uint8)
    return [shared_tensors(keys, digest, place) for place in range(len(looks))]


class _Look(NamedTuple):
    entry: Entry
    sample: int

    @property
    def beginning(self) -> tuple[str, int, int]:
        """What is equal for tensors that seem equal so far."""
        return self.entry.array, self.entry.nbytes, self.sample


def _known(
    entries: Sequence[Entry], samples: Sequence[int | None], grid: Grid
) -> Iterator[tuple[TensorKey, Entry, int]]:
    """Yield the tensors that may go into the pool, unless they begin with zeros, as many large ones do."""
    for row, key in _candidates(entries, grid):
        sample = samples[row]
        if sample is not None and sample != _ZEROS:
            yield key, entries[row], sample


def _unsure_kinds(
    keys: Sequence[TensorKey],
    present: npt.NDArray[np.bool_],
    same: npt.NDArray[np.bool_],
    examples: Mapping[bytes, int],
) -> dict[bytes, set[str]]:
    """Return for each set of ranks the kinds of which these ranks have tensors that not just they share.

    Args:
        keys: the tensors.
        present: (rank, tensor), whether a rank has a tensor.
        same: (rank, tensor), whether it equals the tensor of the asking rank.
        examples: by set of ranks, the column of a tensor that they share.
    """
    names: dict[str, int] = {}
    kinds = np.array([names.setdefault(_kind(key), len(names)) for key in keys], np.int64)
    texts = list(names)
    return {
        ranks: {
            texts[kind]
            for kind in np.unique(
                kinds[present[same[:, column]].any(axis=0) & (same != same[:, [column]]).any(axis=0)]
            ).tolist()
        }
        for ranks, column in examples.items()
    }


def _unit(
    keys: Sequence[TensorKey], members: Sequence[int], ranks: bytes, unsure: Collection[str]
) -> Iterator[tuple[int, SharedTensor]]:
    """Yield the tensors of a unit; it goes with the surest of them.

    Outputs are less sure than inputs: an operator may write them in place, before or after they are dumped.
    """
    kinds = {column: _kind(keys[column]) for column in members}
    homes = {column: kind if kind in unsure else "" for column, kind in kinds.items()}
    home = homes[min(members, key=lambda n: (homes[n] != "", keys[n].io != "input", _text(keys[n])))]
    name = min(_text(keys[column]) for column in members)
    for column in members:
        yield column, SharedTensor(ranks, name, home, homes[column] == home)


def _text(key: TensorKey) -> str:
    return "\0".join(map(str, key))


def _kind(key: TensorKey) -> str:
    return f"{key.op_type}\0{key.io}"


def _firm_and_perhaps(
    entries: Sequence[Entry], shared: Shared, grid: Grid
) -> tuple[dict[_Place, _Units], list[tuple[int, _Place, str]]]:
    """Return the rows that are firmly expected to be shared, by place and unit; and the others, with both."""
    sets: dict[_Place, _Units] = {}
    perhaps: list[tuple[int, _Place, str]] = []
    for row, key in _candidates(entries, grid):
        if (expected := shared.get(key)) is None:
            continue
        place = (expected.ranks, entries[row].array, expected.kind)
        if expected.is_firm:
            sets.setdefault(place, {}).setdefault(expected.unit, []).append(row)
        else:
            perhaps.append((row, place, expected.unit))
    return sets, perhaps


def pool_groups(
    entries: Sequence[Entry], samples: Sequence[int | None], shared: Shared, grid: Grid
) -> list[PoolGroup]:
    """Group the tensors of a step that go into the pool.

    Args:
        entries: the rows of its index.
        samples: of each row, what equal payloads have in common; None if that is not known.
        shared: what is expected to be shared.
        grid: sizes of chunks and shards.
    """
    if not shared:
        return []
    sets, perhaps = _firm_and_perhaps(entries, shared, grid)
    for row, place, unit in perhaps:
        rows = sets.get(place, {}).get(unit, [])
        # After the firm rows, so that it changes nothing if it is equal to one, as it seems.
        if samples[row] is not None and any(samples[row] == samples[firm] for firm in rows):
            rows.append(row)
    return [
        PoolGroup(array_spec(first.array, first.header.element if first.header else None, grid), rows)
        for _, units in sorted(_without_small(sets, entries).items())
        for rows in _arrays(units, entries, grid)
        for first in [entries[rows[0]]]
    ]


def _without_small(sets: Mapping[_Place, _Units], entries: Sequence[Entry]) -> dict[_Place, _Units]:
    """Put those that are too small for an array of their own together, with the smallest that is not.

    None is put to what is surely shared, which it might spoil.
    """
    merged: dict[_Place, _Units] = {}
    sizes = {place: _nbytes(units, entries) for place, units in sets.items()}
    for place in sorted(sets):
        ranks, array, _ = place
        beside = [other for other in sets if other[:2] == place[:2] and other[2]]
        large = [(sizes[other], other) for other in beside if sizes[other] >= _FEWEST_NBYTES]
        place_of_all = min(large)[1] if large else (ranks, array, _OTHERS)
        home = place_of_all if sizes[place] < _FEWEST_NBYTES else place
        merged.setdefault(home, {}).update(sets[place])
    return merged


def _nbytes(units: _Units, entries: Sequence[Entry]) -> int:
    return sum(entries[rows[0]].nbytes for rows in units.values())


def packing_digest(groups: Sequence[PoolGroup]) -> str:
    """Return the part of the name of a generation that says what of it is in the pool: 16 hex digits."""
    text = "\n".join(f"{group.spec.path} {' '.join(map(str, group.rows))}" for group in groups)
    return xxhash.xxh3_64(text.encode()).hexdigest()


def _candidates(entries: Sequence[Entry], grid: Grid) -> Iterator[tuple[int, TensorKey]]:
    # A view shares the place of the tensor that it is a part of, and that is in its generation.
    viewed = {entry.source.path for entry in entries if entry.view is not None}
    for row, key in _keys(entries):
        entry = entries[row]
        is_whole = entry.kind is RowKind.TENSOR and entry.header is not None and entry.readable
        if is_whole and 0 < entry.nbytes <= grid.shard_nbytes and entry.source.path not in viewed:
            yield row, key


def _keys(entries: Iterable[Entry]) -> Iterator[tuple[int, TensorKey]]:
    """Yield each row that is a tensor with its key; see `workers.store.consolidated.blocks.tensors_of`."""
    copies: dict[TensorKey, int] = {}
    text = cache(to_text)  # thousands of tensors share a few dozen parts
    for row, entry in enumerate(entries):
        kind, name = entry.kind, entry.name
        if kind is RowKind.TENSOR or kind is RowKind.STATISTICS:
            parts = (name.net, name.graph, name.op_type, name.op_name, name.io)
            net, graph, op_type, op_name, io = map(text, parts)
            key = TensorKey(net, graph, op_type, op_name, io, name.slot, name.occurrence)
            copy = copies[key] = copies.get(key, -1) + 1
            yield row, key._replace(copy=copy) if copy else key


def _arrays(units: _Units, entries: Sequence[Entry], grid: Grid) -> Iterator[tuple[int, ...]]:
    """Distribute units over arrays, and yield the rows of each array."""
    total = _nbytes(units, entries)
    if total < _FEWEST_NBYTES:
        return
    arrays = _count(total / min(_MEAN_NBYTES, grid.shard_nbytes))
    members = grouped((xxhash.xxh3_64_intdigest(unit.encode()) % arrays, unit) for unit in sorted(units))
    for _, names in sorted(members.items()):
        yield tuple(row for unit in names for row in units[unit])


def _count(least: float) -> int:
    """Return 2^n or 3 * 2^n, so that a few bytes more or less seldom change it, and where everything goes."""
    power = 1 << math.ceil(math.log2(max(least, 1)))
    return power // 4 * 3 if power >= 4 and power // 4 * 3 >= least else power


def array_spec(path: str, element: ElementType | None, grid: Grid, nbytes: int | None = None) -> ArraySpec:
    """Return chunks and shards of a packed array of `nbytes`; of the most that a grid allows if None."""
    itemsize = element.stored_itemsize if element else 1
    # A small array is one chunk, no larger than its content.
    chunk_nbytes = grid.chunk_nbytes if nbytes is None else min(grid.chunk_nbytes, nbytes)
    chunk = max(chunk_nbytes // itemsize, 1)
    chunks = math.inf if nbytes is None else max(math.ceil(nbytes / (chunk * itemsize)), 1)
    return ArraySpec(
        path=path,
        data_type=element.stored_name if element else "uint8",
        itemsize=itemsize,
        big_endian=bool(element and element.is_native and element.big_endian),
        chunk=chunk,
        chunks_per_shard=int(min(chunks, max(grid.shard_nbytes // (chunk * itemsize), 1))),
        sparse=sparse_rule(element.stored_name) if element else "",
    )
