"""Digests of blocks do not depend on the pieces, and differ where payloads differ."""

from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.digest import BLOCK_NBYTES, RunningBlockDigests, blocks_of, differing_runs

PAYLOAD = np.random.default_rng(0).bytes(3 * BLOCK_NBYTES + 100)


def digests(payload: bytes, cuts: list[int] | None = None) -> list[int]:
    running = RunningBlockDigests()
    edges = [0, *sorted(cuts or []), len(payload)]
    for begin, end in pairwise(edges):
        running.update(memoryview(payload)[begin:end])
    made: list[int] = running.result().view(np.uint64).tolist()
    return made


@given(cuts=st.lists(st.integers(0, len(PAYLOAD)), max_size=5))
def test_any_pieces_give_the_digests_of_the_blocks(cuts: list[int]) -> None:
    blocks = [PAYLOAD[start : start + BLOCK_NBYTES] for start in range(0, len(PAYLOAD), BLOCK_NBYTES)]
    assert digests(PAYLOAD, cuts) == [xxhash.xxh3_64_intdigest(block) for block in blocks]
    assert len(blocks) == blocks_of(len(PAYLOAD))


def test_runs_are_where_digests_differ() -> None:
    first = np.array([1, 2, 3, 4, 5])
    assert differing_runs(first, np.array([0, 0, 3, 4, 0])) == [(0, 2), (4, 5)]
    assert differing_runs(first, first) == []
    with pytest.raises(ValueError, match="5 blocks and 4"):
        differing_runs(first, first[:4])
