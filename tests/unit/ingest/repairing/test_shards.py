"""A shard is made again from the payloads that lie in it, as it was."""

import pytest

from ingest.repairing.payloads import PlaceInArray, elements_of_shard
from ingest.repairing.work import Payload
from workers.errors import DamagedStore
from workers.store.model import ArraySpec

#: Shards of eight elements of two bytes.
SPEC = ArraySpec("tensors/uint16", "uint16", itemsize=2, big_endian=False, chunk=4, chunks_per_shard=2)


def counting(first: int) -> Payload:
    """Return a payload whose elements are `first`, `first + 1`, and so on."""
    return Payload(
        "memory",
        lambda start, stop: b"".join(
            (first + at).to_bytes(2, "little") for at in range(start // 2, stop // 2)
        ),
    )


def elements(shard: int, *places: PlaceInArray, lost: int = -1) -> list[int]:
    pieces = elements_of_shard(
        SPEC, shard, places, lambda place: None if place.start == lost else counting(place.start + 100)
    )
    data = b"".join(pieces)
    return [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]


def test_what_is_lost_and_what_lies_between_is_zero() -> None:
    places = PlaceInArray(5, 7, (1,)), PlaceInArray(1, 3, (0,))
    assert elements(0, *places) == [0, 101, 102, 0, 0, 105, 106]
    assert elements(0, *places, lost=1) == [0, 0, 0, 0, 0, 105, 106]


def test_rows_that_claim_the_same_element_are_refused() -> None:
    with pytest.raises(DamagedStore, match="two rows claim element 2"):
        elements(0, PlaceInArray(0, 3, (0,)), PlaceInArray(2, 5, (1,)))
