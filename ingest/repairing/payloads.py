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

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.repairing.commits import commit_from_objects
from ingest.repairing.work import (
    Copies,
    DumpedPayload,
    Lost,
    Payload,
    StepWork,
    StoredPayload,
    Unmendable,
    first_same,
)
from workers.errors import DamagedStore
from workers.model import MIB, StepKey
from workers.store import commit, metadata, tables
from workers.store.commit import Commit
from workers.store.model import ArraySpec
from workers.store.objects import Gathered, ObjectStore
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


def shard_range(spec: ArraySpec, shard: int) -> tuple[int, int]:
    """Return the elements of an array that are in a shard."""
    return shard * spec.shard, (shard + 1) * spec.shard


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
    first, last = shard_range(spec, shard)
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
            yield from _pieces(payload, start - place.start, stop - place.start, spec.itemsize)
        position = stop


def _pieces(payload: Payload, start: int, stop: int, itemsize: int) -> Iterator[bytes | bytearray]:
    """Yield elements `start` to `stop` of a payload in pieces."""
    step = max(_PIECE_NBYTES // itemsize, 1)
    for begin in range(start, stop, step):
        yield payload.read(begin * itemsize, min(begin + step, stop) * itemsize)


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
    copies: Copies
    earlier: Sequence[StoredStep] = ()
    """Earlier generations of the step."""
    sharers: Callable[[str], Sequence[tuple[StoredStep, Sequence[Path]]]] = lambda _path: ()
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
        for place in self._places_to_find():
            digest, nbytes = self._identity(place)
            self._sources[place] = first_same(self._in_dumps(place), nbytes, digest)
            if self._sources[place] is None:
                missing.setdefault(digest, []).append(place)
        if not missing:
            return
        copies = self.copies.find(self.step.key, self.earlier, list(missing))
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

    @cached_property
    def _damaged_rows(self) -> set[int]:
        return {damage.row for damage in self.damages if damage.row >= 0}

    def _damaged_places(self) -> Iterator[tuple[str, PlaceInArray]]:
        for array, places in self._places.items():
            for place in places:
                if not self._damaged_rows.isdisjoint(place.rows):
                    yield array, place

    def _places_to_find(self) -> list[PlaceInArray]:
        damaged = {id(place): place for _, place in self._damaged_places()}
        return list(damaged.values())

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


def reasons_of(step: Step, damages: Sequence[Damage], rows: Iterable[int]) -> Mapping[int, str]:
    """Return, for rows that are lost, what verifying said of each."""
    said = {damage.row: damage.reason for damage in damages if damage.row >= 0}
    return {row: said.get(row, f"{step.key}: its place is damaged") for row in rows}


@dataclass(eq=False)
class PooledShards:
    """The shards in the pool that one step refers to."""

    step: Step
    payloads: Payloads
    put: Callable[[str, bytes, str], None]
    """Writes an object, unless this is a dry run: its key, its content, and where it comes from."""

    def mend(self, shard: DamagedShard) -> bool:
        """Write a shard again; return whether it is what the name of its array says.

        Digests of payloads were compared already. They are not cryptographic, and other ranks rely on the
        array, too: a dump that was forged must not get into it.
        """
        pooled = self.step.commit.record.pool[shard.array]
        elements = self.payloads.elements(shard)
        if not is_named(pool.name_in(shard.array), pooled.node, elements):
            return False
        data = encode(self.step.packed_spec(shard.array), elements)
        if len(data) != pooled.nbytes:
            return False  # another version of the compressor
        if self.step.objects.get(shard.path) != data:
            self.put(shard.path, data, self.payloads.origins(shard))
        return True

    def replaced(self) -> dict[str, PackedInPool | None]:
        """Write what is left of arrays that cannot be made again as other arrays in the pool.

        Returns:
            By path of a damaged array: what takes its place; None if nothing of it is left.
        """
        replaced: dict[str, PackedInPool | None] = {}
        for shard in self.payloads.shards:
            if not pool.is_pooled(shard.array):
                continue
            if not self.payloads.is_lost(shard) and self.mend(shard):
                continue
            replaced[shard.array] = None
            if self.payloads.holds_anything(shard):
                spec = self.step.packed_spec(shard.array)
                with PoolPacker(spec, self.step.key, self.step.objects) as packer:
                    for piece in self.payloads.elements(shard):
                        packer.append(memoryview(piece))
                (replaced[shard.array],) = packer.arrays
        return replaced


def steps_referring(objects: ObjectStore, key: StepKey, path: str) -> list[StoredStep]:
    """Return the same step of other ranks, if it refers to an array in the pool."""
    others = []
    for rank in commit.list_ranks(objects):
        with suppress(DamagedStore):
            other = commit.read(objects, StepKey(rank, key.step))
            if rank != key.rank and other is not None and path in other.record.pool:
                others.append(StoredStep(objects, other))
    return others


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
    chunks |= _kept_tables(step)
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


def _kept_tables(step: Step) -> dict[str, bytes]:
    """Return the chunks of findings and sketches, by path in the generation."""
    prefix = step.commit.prefix
    nodes = step.commit.nodes
    keys = [f"{path}/c/0/0" for path, node in nodes.items() if _is_of_findings(path, node)]
    keys += sketch_tables.chunk_keys(nodes)
    contents = step.objects.get_many([f"{prefix}/{key}" for key in keys])
    return {key[len(prefix) + 1 :]: data for key, data in contents.items()}


def _is_of_findings(path: str, node: metadata.Document) -> bool:
    return path.startswith("findings/") and node.get("node_type") == "array"


def _nodes(
    step: Step, documents: Mapping[str, metadata.Document], stored: Collection[str]
) -> dict[str, metadata.Document]:
    """Return the metadata of the generation; none of arrays of which nothing is left."""
    kept = {path.partition("/c/")[0] for path in stored}
    sizes, array = step.tables.number("size"), step.tables.label("array")
    nodes = {
        path: node
        for path, node in step.commit.nodes.items()
        if not _is_packed(path) or path in kept or not sizes[array == path].any()
    }
    if not any(path.startswith("tensors/") for path in nodes):
        nodes.pop("tensors", None)
    return {**nodes, **documents}


def _is_packed(path: str) -> bool:
    return path == "files" or path.startswith("tensors/")


def mend_payloads(work: StepWork, step: Step, damages: Sequence[Damage]) -> None:
    """Write damaged shards again. What is found nowhere is lost: named, and left out if that is accepted."""
    payloads = _payloads_of(work, step, damages)
    pooled = PooledShards(step, payloads, work.put)
    stored, odd = step.commit.record.stored, False
    for shard in payloads.shards:
        if payloads.is_lost(shard):
            continue
        if pool.is_pooled(shard.array):
            odd |= not pooled.mend(shard)
            continue
        data, path = payloads.encode(shard), f"{step.commit.prefix}/{shard.path}"
        if len(data) != stored.get(shard.path):
            odd = True  # another version of the compressor: the commit has another size
        elif work.objects.get(path) != data:
            work.put(path, data, payloads.origins(shard))
    reasons = reasons_of(step, damages, payloads.lost)
    sources = step.tables.label("source")
    work.repair.lost += [Lost(str(sources[row]), reason) for row, reason in reasons.items()]
    if odd or (reasons and work.policy.accept_loss):
        lost = {row: f"{LOST}: {reason}" for row, reason in reasons.items()}
        if not reasons or work.policy.accept_loss:
            _commit_rest(work, step, lost, payloads)


def _payloads_of(work: StepWork, step: Step, damages: Sequence[Damage]) -> Payloads:
    roots = [dump.root for dump in work.dumps.of(step.commit.record)]
    payloads = Payloads(
        step, damages, roots, Copies(work.catalog), _earlier(work, step.commit), partial(_sharers, work)
    )
    payloads.find_sources()
    return payloads


def _sharers(work: StepWork, path: str) -> list[tuple[StoredStep, list[Path]]]:
    """Return the steps of other ranks that refer to an array in the pool, and the dumps of each."""
    others = steps_referring(work.objects, work.key, path)
    return [(other, [dump.root for dump in work.dumps.of(other.commit.record)]) for other in others]


def _earlier(work: StepWork, committed: Commit) -> list[StoredStep]:
    """Return the earlier generations that can still be read."""
    earlier: list[StoredStep] = []
    for name in reversed(committed.record.previous):
        try:
            earlier.append(StoredStep(work.objects, commit_from_objects(work.objects, work.key, name)))
        except DamagedStore:
            continue
    return earlier


def _commit_rest(work: StepWork, step: Step, lost: dict[int, str], payloads: Payloads) -> None:
    work.repair.generation = name_of_rest(step.commit.fingerprint, lost)
    if not work.policy.apply:
        return
    shards = {shard.path: shard for shard in payloads.shards}
    made_in_pool = PooledShards(step, payloads, work.put).replaced()
    commit_rest(
        step, lost, lambda path: _shard_of(work, step, path, shards.get(path), payloads), made_in_pool
    )


def _shard_of(
    work: StepWork, step: Step, path: str, damaged: DamagedShard | None, payloads: Payloads
) -> bytes | None:
    if damaged is None:
        return work.objects.get(f"{step.commit.prefix}/{path}")
    return payloads.encode(damaged) if payloads.holds_anything(damaged) else None
