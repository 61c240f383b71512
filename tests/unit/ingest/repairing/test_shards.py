"""A shard is made again from the payloads that lie in it, as it was."""

import pytest

from ingest.repairing.payloads import PlaceInArray, elements_of_shard
from ingest.repairing.work import Payload, first_same
from workers.arrays.digest import new_digest
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


def test_a_place_may_go_over_several_shards() -> None:
    place = PlaceInArray(6, 17, (0,))
    assert elements(0, place) == [0, 0, 0, 0, 0, 0, 106, 107]
    assert elements(1, place) == list(range(108, 116))
    assert elements(2, place) == [116]


def test_what_is_lost_and_what_lies_between_is_zero() -> None:
    places = PlaceInArray(5, 7, (1,)), PlaceInArray(1, 3, (0,))
    assert elements(0, *places) == [0, 101, 102, 0, 0, 105, 106]
    assert elements(0, *places, lost=1) == [0, 0, 0, 0, 0, 105, 106]


def test_rows_that_claim_the_same_element_are_refused() -> None:
    with pytest.raises(DamagedStore, match="two rows claim element 2"):
        elements(0, PlaceInArray(0, 3, (0,)), PlaceInArray(2, 5, (1,)))


CONTENT = bytes(range(200))


def refusing(error: Exception) -> Payload:
    def read(_start: int, _stop: int) -> bytes:
        raise error

    return Payload("memory", read)


@pytest.mark.parametrize(
    "other",
    [
        Payload("truncated", lambda start, stop: CONTENT[:-1][start:stop]),
        Payload("other", lambda start, stop: (CONTENT[:-1] + b"x")[start:stop]),
        refusing(FileNotFoundError()),
        refusing(DamagedStore("its shard is damaged")),
    ],
)
def test_the_first_with_the_same_bytes_is_taken(other: Payload) -> None:
    running = new_digest()
    running.update(CONTENT)
    same = Payload("same", lambda start, stop: CONTENT[start:stop])
    assert first_same([other, same, same], len(CONTENT), running.digest()) is same
    assert first_same([other], len(CONTENT), running.digest()) is None
