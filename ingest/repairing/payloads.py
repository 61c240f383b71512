"""The payloads of one step: shards made again, or a generation that names what is lost.

The encoding is deterministic: the same payloads in the same places give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import xxhash

from ingest.reader.catalog import Catalog
from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.repairing.commits import commit_from_objects
from ingest.repairing.work import (
    DumpedPayload,
    Lost,
    Payload,
    StepWork,
    StoredPayload,
    Unmendable,
    find_copies,
    first_same,
)
from workers.errors import DamagedStore
from workers.model import MIB, StepKey
from workers.store import commit, metadata, tables
from workers.store.model import ArraySpec
from workers.store.objects import Gathered
from workers.store.packed import pool
from workers.store.packed.pool_packer import PackedInPool, PoolPacker, encode, is_named
from workers.store.packed.shards import ShardPacker
from workers.store.record import new_record
from workers.store.sketches import sketch_tables
from workers.store.step import StoredStep
from workers.store.table_codec import checksums_of
from workers.store.tables import LABELS, NUMBERS, Tables
from workers.tasks.publish import MAX_PROBLEMS_IN_RECORD, count_rows

_PIECE_NBYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class PlaceInArray:
    """A range of elements of a packed array, which one row or several equal ones refer to."""

    start: int
    stop: int
    rows: tuple[int, ...]

    def within(self, first: int, last: int) -> bool:
        """Return whether any of it lies in elements `first` to `last`."""
        return self.start < last and self.stop > first


def encode_shard(
    spec: ArraySpec,
    shard: int,
    places: Iterable[PlaceInArray],
    payload_of: Callable[[PlaceInArray], Payload | None],
) -> bytes:
    """Return the bytes of a shard.

    Memory: the encoded shard, and one piece of 16 MiB.

    Args:
        spec: the array.
        shard: its number.
        places: everything that lies in it.
        payload_of: returns the payload at a place; None for one that is lost, which becomes zeros.

    Raises:
        DumpIngestError, OSError: a payload cannot be read.
        DamagedStore: the places overlap.
    """
    encoded: list[bytes] = []
    with ShardPacker(spec, shard, lambda _shard: Gathered(encoded.append)) as packer:
        for piece in elements_of_shard(spec, shard, places, payload_of):
            packer.append(memoryview(piece))
    return encoded[0] if encoded else b""


def elements_of_shard(
    spec: ArraySpec,
    shard: int,
    places: Iterable[PlaceInArray],
    payload_of: Callable[[PlaceInArray], Payload | None],
) -> Iterator[bytes | bytearray]:
    """Yield the elements of a shard in pieces of at most 16 MiB, up to its last place; see `encode_shard`."""
    first, last = shard * spec.shard, (shard + 1) * spec.shard
    position = first
    for place in sorted(places, key=lambda place: place.start):
        start, stop = max(place.start, first), min(place.stop, last)
        if start < position:
            raise DamagedStore(f"{spec.path}/c/{shard}: two rows claim element {start}")
        yield from _zeros((start - position) * spec.itemsize)
        payload = payload_of(place)
        if payload is None:
            yield from _zeros((stop - start) * spec.itemsize)
        else:
            first_byte, last_byte = ((at - place.start) * spec.itemsize for at in (start, stop))
            piece_nbytes = max(_PIECE_NBYTES // spec.itemsize, 1) * spec.itemsize
            for begin in range(first_byte, last_byte, piece_nbytes):
                yield payload.read(begin, min(begin + piece_nbytes, last_byte))
        position = stop


def _zeros(nbytes: int) -> Iterator[bytes]:
    for start in range(0, nbytes, _PIECE_NBYTES):
        yield bytes(min(_PIECE_NBYTES, nbytes - start))


@dataclass(frozen=True, slots=True)
class DamagedShard:
    """One shard that has to be made again."""

    array: str
    number: int
    places: tuple[PlaceInArray, ...]
    """Everything that lies in it."""

    @property
    def path(self) -> str:
        """Its path in the generation."""
        return f"{self.array}/c/{self.number}"


@dataclass(eq=False)
class Payloads:
    """The payloads of one step, some of which are damaged."""

    step: Step
    damages: Sequence[Damage]
    """What verifying found."""
    roots: Sequence[Path]
    """The dumps that may have its files."""
    catalog: Catalog
    """Of the store, in which copies are looked for."""
    earlier: Sequence[StoredStep] = ()
    """Earlier generations of the step."""
    sharers: Callable[[str], Iterable[tuple[StoredStep, Sequence[Path]]]] = lambda _path: ()
    """Given an array in the pool, returns the steps of other ranks that refer to it, and their dumps."""
    _sources: dict[PlaceInArray, Payload | None] = field(default_factory=dict)

    @cached_property
    def shards(self) -> list[DamagedShard]:
        """The shards that are damaged, or hold a damaged payload."""
        wanted: set[tuple[str, int]] = set()
        prefix = f"{self.step.commit.prefix}/"
        for damage in self.damages:
            array, is_chunk, number = damage.path.removeprefix(prefix).partition("/c/")
            if is_chunk and number.isdecimal() and array in self._places:
                wanted.add((array, int(number)))
        for array, place in self._damaged_places():
            spec = self.step.packed_spec(array)
            numbers = range(place.start // spec.shard, (place.stop - 1) // spec.shard + 1)
            wanted.update((array, number) for number in numbers)
        return [self._shard(array, number) for array, number in sorted(wanted)]

    def find_sources(self) -> None:
        """Find what each damaged payload can be taken from: dump files first, then copies in the store.

        Raises:
            Unmendable: rows that share a damaged place do not agree what lies there.
        """
        missing: dict[bytes, list[PlaceInArray]] = {}
        table = self.step.tables
        for place in dict.fromkeys(place for _, place in self._damaged_places()):
            digest, nbytes = self._identity(place)
            self._sources[place] = first_same(self._in_dumps(place), nbytes, digest)
            if self._sources[place] is None:
                missing.setdefault(digest, []).append(place)
        if not missing:
            return
        copies = find_copies(self.catalog, self.step.key, self.earlier, missing)
        for digest, places in missing.items():
            nbytes = int(table.number("nbytes")[places[0].rows[0]])
            source = first_same(copies[digest], nbytes, digest)
            self._sources.update(dict.fromkeys(places, source))

    @property
    def lost(self) -> list[int]:
        """The rows whose payload is found nowhere; after `find_sources`."""
        return sorted(row for place, source in self._sources.items() if source is None for row in place.rows)

    def is_lost(self, shard: DamagedShard) -> bool:
        """Return whether something that lies in a shard is found nowhere."""
        return any(self._source(place) is None for place in shard.places)

    def encode(self, shard: DamagedShard) -> bytes:
        """Return the bytes of a shard; zeros in the place of what is lost.

        Raises:
            DumpIngestError, OSError: a payload cannot be read any more.
        """
        return encode_shard(self.step.packed_spec(shard.array), shard.number, shard.places, self._source)

    def elements(self, shard: DamagedShard) -> list[bytes | bytearray]:
        """Return the elements of a shard in pieces; zeros in the place of what is lost. See `encode`."""
        spec = self.step.packed_spec(shard.array)
        return list(elements_of_shard(spec, shard.number, shard.places, self._source))

    def holds_anything(self, shard: DamagedShard) -> bool:
        """Return whether anything that lies in a shard is left."""
        return any(self._source(place) is not None for place in shard.places)

    def origins(self, shard: DamagedShard) -> str:
        """Return where the damaged payloads of a shard come from, for people."""
        sources = [self._sources[place] for place in shard.places if place in self._sources]
        names = dict.fromkeys(source.origin for source in sources if source is not None)
        return ", ".join(names) or "its own payloads"

    @cached_property
    def _places(self) -> dict[str, list[PlaceInArray]]:
        """By array, the places to which rows refer, in order."""
        table = self.step.tables
        offsets, sizes, arrays = table.number("offset"), table.number("size"), table.label("array")
        rows: dict[tuple[str, int, int], list[int]] = {}
        for row in np.flatnonzero((offsets >= 0) & (sizes > 0)).tolist():
            if self.step.has_payload(row):
                key = (str(arrays[row]), int(offsets[row]), int(sizes[row]))
                rows.setdefault(key, []).append(row)
        places: dict[str, list[PlaceInArray]] = {}
        for (array, offset, size), members in sorted(rows.items()):
            places.setdefault(array, []).append(PlaceInArray(offset, offset + size, tuple(members)))
        return places

    def _damaged_places(self) -> list[tuple[str, PlaceInArray]]:
        damaged = {damage.row for damage in self.damages}
        every = ((array, place) for array, places in self._places.items() for place in places)
        return [(array, place) for array, place in every if not damaged.isdisjoint(place.rows)]

    def _shard(self, array: str, number: int) -> DamagedShard:
        spec = self.step.packed_spec(array)
        first, last = number * spec.shard, (number + 1) * spec.shard
        places = tuple(place for place in self._places[array] if place.within(first, last))
        return DamagedShard(array, number, places)

    def _identity(self, place: PlaceInArray) -> tuple[bytes, int]:
        """Return digest and length of a payload.

        Raises:
            Unmendable: rows that share a place do not agree.
        """
        table = self.step.tables
        digests = {table.digest[row].tobytes() for row in place.rows}
        if len(digests) > 1:
            source = table.label("source")[place.rows[0]]
            raise Unmendable(
                f"{self.step.commit.prefix}/index/digest",
                f"{source} shares its place with rows of other digests, and nothing tells which of them is "
                "right: name the dump with --dump",
            )
        return digests.pop(), int(table.number("nbytes")[place.rows[0]])

    def _in_dumps(self, place: PlaceInArray) -> Iterable[Payload]:
        for root in self.roots:
            yield from (DumpedPayload(self.step, row, root) for row in place.rows)
        path = str(self.step.tables.label("array")[place.rows[0]])
        if not pool.is_pooled(path):
            return
        for other, roots in self.sharers(path):
            table = other.tables
            same = (table.label("array") == path) & (table.number("offset") == place.start)
            for row in np.flatnonzero(same & (table.number("size") == place.stop - place.start)).tolist():
                yield from (DumpedPayload(other, row, root) for root in roots)

    def _source(self, place: PlaceInArray) -> Payload | None:
        if place in self._sources:
            return self._sources[place]
        return StoredPayload(self.step, place.rows[0], "the store")

    def mend_pooled(self, shard: DamagedShard, put: Callable[[str, bytes, str], None]) -> bool:
        """Write a shard in the pool again; return whether it is what the name of its array says.

        Digests of payloads were compared already. They are not cryptographic, and other ranks rely on the
        array, too: a dump that was forged must not get into it.

        Args:
            shard: one of `shards`.
            put: writes an object, unless this is a dry run: its key, its content, and where it comes from.
        """
        pooled = self.step.commit.record.pool[shard.array]
        elements = self.elements(shard)
        if not is_named(pool.name_in(shard.array), pooled.node, elements):
            return False
        data = encode(self.step.packed_spec(shard.array), elements)
        if len(data) != pooled.nbytes:
            return False  # another version of the compressor
        if self.step.objects.get(shard.path) != data:
            put(shard.path, data, self.origins(shard))
        return True

    def replace_pooled(self, put: Callable[[str, bytes, str], None]) -> dict[str, PackedInPool | None]:
        """Write what is left of arrays that cannot be made again as other arrays in the pool.

        Returns:
            By path of a damaged array: what takes its place; None if nothing of it is left.
        """
        replaced: dict[str, PackedInPool | None] = {}
        for shard in self.shards:
            if not pool.is_pooled(shard.array):
                continue
            if not self.is_lost(shard) and self.mend_pooled(shard, put):
                continue
            replaced[shard.array] = None
            if self.holds_anything(shard):
                spec = self.step.packed_spec(shard.array)
                with PoolPacker(spec, self.step.key, self.step.objects) as packer:
                    for piece in self.elements(shard):
                        packer.append(memoryview(piece))
                (replaced[shard.array],) = packer.arrays
        return replaced


#: What the label `problem` of a lost row begins with.
LOST = "lost"


def name_of_rest(fingerprint: str, lost: Collection[int]) -> str:
    """Return the name of the generation that is another one without the payloads of some rows."""
    text = f"{fingerprint}\nlost\n{' '.join(map(str, sorted(lost)))}\n"
    return xxhash.xxh3_128(text.encode()).hexdigest()


def commit_rest(
    step: Step,
    lost: Mapping[int, str],
    shard_of: Callable[[str], bytes | None],
    made_in_pool: Mapping[str, PackedInPool | None],
) -> str:
    """Commit a step again without the payloads that are lost, and return the name of the generation.

    Lost rows keep their labels, digests and statistics. Their offset is -1, and their label `problem` says
    why. The committed generation stays as it is until `gc` removes it.

    Args:
        step: the step, whose index is whole.
        lost: by row, why its payload is lost.
        shard_of: given the path of a shard in the generation, returns its bytes; None if all in it is lost.
        made_in_pool: the arrays in the pool that are damaged, by path: what takes the place of each, which is
            in the store; None if all in it is lost.

    Raises:
        SourceChanged: another generation was committed meanwhile.
        StoreError: the store refused.
    """
    committed, objects = step.commit, step.objects
    name = name_of_rest(committed.fingerprint, lost)
    prefix = f"{committed.key.path}/{name}"
    stored: dict[str, int] = {}
    for path in committed.record.stored:
        data = shard_of(path)
        if data is not None:
            objects.put(f"{prefix}/{path}", data)
            stored[path] = len(data)
    pooled = {path: array for path, array in committed.record.pool.items() if path not in made_in_pool}
    pooled |= {made.path: made.array for made in made_in_pool.values() if made is not None}
    built = _without(step.tables, lost, made_in_pool)
    documents, chunks = tables.encode(built)
    # Those of findings and sketches stay.
    keys = [
        f"{path}/c/0/0"
        for path, node in committed.nodes.items()
        if path.startswith("findings/") and node.get("node_type") == "array"
    ]
    keys += sketch_tables.chunk_keys(committed.nodes)
    kept = objects.get_many([f"{committed.prefix}/{key}" for key in keys])
    chunks |= {key[len(committed.prefix) + 1 :]: data for key, data in kept.items()}
    nodes = _nodes(step, documents, stored)
    summary = replace(
        committed.summary,
        fingerprint=name,
        status="partial" if lost else committed.summary.status,
        stored_bytes=sum(stored.values())
        + sum(map(len, chunks.values()))
        + sum(array.nbytes for array in pooled.values()),
        objects=len(stored) + len(chunks) + len(nodes) + 2 * len(pooled) + 1,
        **count_rows(built),
    )
    sources = built.label("source")
    problems = [f"{sources[row]}: {reason}" for row, reason in sorted(lost.items())]
    record = committed.record
    remade = new_record(
        summary,
        origin=record.source,
        stored=stored,
        without_tensors=record.without_tensors,
        nets=record.nets,
        graphs=record.graphs,
        problems=(*problems, *record.problems)[:MAX_PROBLEMS_IN_RECORD],
        poison=record.poison,
        pool=pooled,
        checksums=checksums_of(chunks),
    )
    commit.write(objects, remade, nodes, chunks, replaces=committed.fingerprint)
    return name


def _without(
    built: Tables, lost: Mapping[int, str], made_in_pool: Mapping[str, PackedInPool | None]
) -> Tables:
    numbers, labels = built.numbers.copy(), built.labels.copy()
    for path, made in made_in_pool.items():
        if made is not None:
            labels[built.label("array") == path, LABELS.index("array")] = made.path
    problem = LABELS.index("problem")
    for row, reason in lost.items():
        numbers[row, NUMBERS.index("offset")] = -1
        before = labels[row, problem]
        labels[row, problem] = f"{before}; {reason}" if before else reason
    return Tables(labels, numbers, built.shape, built.digest, built.statistics)


def _nodes(
    step: Step, documents: Mapping[str, metadata.Document], stored: Collection[str]
) -> dict[str, metadata.Document]:
    """Return the metadata of the generation; none of arrays of which nothing is left."""
    kept = {path.partition("/c/")[0] for path in stored}
    sizes, array = step.tables.number("size"), step.tables.label("array")
    nodes = {
        path: node
        for path, node in step.commit.nodes.items()
        if not path.startswith(("files", "tensors/")) or path in kept or not sizes[array == path].any()
    }
    if not any(path.startswith("tensors/") for path in nodes):
        nodes.pop("tensors", None)
    return {**nodes, **documents}


def mend_payloads(work: StepWork, step: Step, damages: Sequence[Damage]) -> None:
    """Write damaged shards again. What is found nowhere is lost: named, and left out if that is accepted."""
    earlier: list[StoredStep] = []
    for name in reversed(step.commit.record.previous):
        with suppress(DamagedStore):  # it cannot be read any more
            earlier.append(StoredStep(work.objects, commit_from_objects(work.objects, work.key, name)))
    roots = [dump.root for dump in work.dumps.of(step.commit.record)]
    payloads = Payloads(step, damages, roots, work.catalog, earlier, partial(_sharers, work))
    payloads.find_sources()
    stored, odd = step.commit.record.stored, False
    for shard in payloads.shards:
        if payloads.is_lost(shard):
            continue
        if pool.is_pooled(shard.array):
            odd |= not payloads.mend_pooled(shard, work.put)
            continue
        data, path = payloads.encode(shard), f"{step.commit.prefix}/{shard.path}"
        if len(data) != stored.get(shard.path):
            odd = True  # another version of the compressor: the commit has another size
        elif work.objects.get(path) != data:
            work.put(path, data, payloads.origins(shard))
    said = {damage.row: damage.reason for damage in damages}
    reasons = {row: said.get(row, f"{step.key}: its place is damaged") for row in payloads.lost}
    sources = step.tables.label("source")
    work.repair.lost += [Lost(str(sources[row]), reason) for row, reason in reasons.items()]
    if odd or (reasons and work.policy.accept_loss):
        lost = {row: f"{LOST}: {reason}" for row, reason in reasons.items()}
        if not reasons or work.policy.accept_loss:
            _commit_rest(work, step, lost, payloads)


def _sharers(work: StepWork, path: str) -> Iterator[tuple[StoredStep, list[Path]]]:
    """Yield the steps of other ranks that refer to an array in the pool, and the dumps of each."""
    for rank in commit.list_ranks(work.objects):
        with suppress(DamagedStore):
            other = commit.read(work.objects, StepKey(rank, work.key.step))
            if rank != work.key.rank and other is not None and path in other.record.pool:
                roots = [dump.root for dump in work.dumps.of(other.record)]
                yield StoredStep(work.objects, other), roots


def _commit_rest(work: StepWork, step: Step, lost: dict[int, str], payloads: Payloads) -> None:
    work.repair.generation = name_of_rest(step.commit.fingerprint, lost)
    if not work.policy.apply:
        return
    shards = {shard.path: shard for shard in payloads.shards}

    def shard_of(path: str) -> bytes | None:
        if path not in shards:
            return work.objects.get(f"{step.commit.prefix}/{path}")
        return payloads.encode(shards[path]) if payloads.holds_anything(shards[path]) else None

    commit_rest(step, lost, shard_of, payloads.replace_pooled(work.put))
