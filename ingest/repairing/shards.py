"""One shard, made again from the payloads that lie in it.

The encoding is deterministic: the same payloads in the same places give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ingest.repairing.sources import Payload
from workers.errors import DamagedStore
from workers.model import MIB
from workers.store.model import ArraySpec
from workers.store.packed.shards import ShardPacker
from workers.store.pieces import Gathered

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
