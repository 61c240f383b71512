"""Digests are those of XXH3-128, whole or in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.digest import DIGEST_BYTES, digest, new_digest


@given(st.binary(max_size=300), st.integers(0, 300))
def test_pieces_give_the_digest_of_the_whole(data: bytes, cut: int) -> None:
    running = new_digest()
    running.update(data[:cut])
    running.update(memoryview(data)[cut:])
    assert running.digest() == digest(data) == digest(bytearray(data))
    assert len(digest(data)) == DIGEST_BYTES
