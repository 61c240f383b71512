"""Bytes around payloads come back as they were, and what is the same in many is packed once."""

import pickle
import random

import pytest

from workers.tasks.around import Around, PackedAround

RANDOM = random.Random(0)
ALIKE = [(b"lead %03d %s" % (number, b"=" * 500), b"tail %03d" % number) for number in range(600)]
VARIED = [(RANDOM.randbytes(RANDOM.randrange(4)), RANDOM.randbytes(RANDOM.randrange(3))) for _ in range(3000)]


@pytest.mark.parametrize(
    "around",
    [
        [],
        [(b"", b"")] * 20,
        [(b"npy", b"")],
        ALIKE,
        VARIED,
        [*ALIKE, *VARIED, (b"x" * 70_000, b"")],
        [(b"ab", b"c")] * 9 + [(b"a", b"bc")] * 9,  # of the same length in all
    ],
)
def test_all_of_them_come_back(around: list[Around]) -> None:
    packed = pickle.loads(pickle.dumps(PackedAround.of(around)))  # noqa: S301  (its own)
    assert packed.unpack() == around


def test_what_is_the_same_is_packed_once() -> None:
    nbytes = sum(len(lead) + len(tail) for lead, tail in ALIKE)
    assert len(pickle.dumps(PackedAround.of(ALIKE))) < nbytes / 20
