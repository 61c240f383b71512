"""The payloads of a step: which shards are damaged, and what the bytes in them can be taken from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.repairing.shards import PlaceInArray, elements_of_shard, encode_shard
from ingest.repairing.sources import Copies, DumpedPayload, Payload, StoredPayload, first_same
from ingest.repairing.work import Unmendable
from workers.store.packed import pool
from workers.store.step import StoredStep


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
