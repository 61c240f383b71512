"""Sparse chunks are told by a sample; see test_shards.py for how they are stored and read."""

import numpy as np
import pytest

from workers.store.sparse_chunks import encoder_of_sparse, has_sparse_chunks, is_sparse


def test_real_numbers_may_be_sparse() -> None:
    names = ["float32", "bfloat16", "float8_e5m2", "complex64", "int32", "uint8", "bool"]
    assert [has_sparse_chunks(name) for name in names] == [True] * 4 + [False] * 3


@pytest.mark.parametrize(("share", "sparse"), [(0, False), (0.05, False), (0.25, True), (1, True)])
def test_a_chunk_is_sparse_by_its_share_of_zeros(share: float, *, sparse: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(2**16, np.float32)
    values[rng.random(values.size) < share] = 0
    assert is_sparse(values.data.cast("B"), 4) is sparse


def test_columns_of_zeros_are_seen() -> None:
    values = np.ones((512, 512), np.float32)
    values[:, :128] = 0
    assert is_sparse(values.data.cast("B"), 4)
    values[:, 32:128] = 1
    assert not is_sparse(values.data.cast("B"), 4)


def test_nothing_is_not_sparse() -> None:
    assert not is_sparse(memoryview(b""), 4)


def test_a_chunk_of_zeros_takes_next_to_nothing() -> None:
    assert len(encoder_of_sparse(4).encode(memoryview(bytes(2**20)))) < 100
