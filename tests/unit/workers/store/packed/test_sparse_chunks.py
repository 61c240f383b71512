"""Sparse chunks are told by a sample; see test_shards.py for how they are stored and read."""

import google_crc32c
import numpy as np
import pytest
from numcodecs import Blosc

from workers.arrays.compiled import kernels
from workers.store.packed import chunks
from workers.store.packed.chunks import BY_BLOSC, QUICK, encoder_of_sparse, is_sparse, sparse_rule


def test_real_numbers_may_be_sparse() -> None:
    names = ["float32", "bfloat16", "float8_e5m2", "complex64", "int32", "uint8", "bool"]
    assert [sparse_rule(name) for name in names] == [QUICK] * 4 + [""] * 3


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


@pytest.mark.parametrize("rule", [BY_BLOSC, QUICK])
def test_a_chunk_of_zeros_takes_next_to_nothing(rule: str) -> None:
    assert len(encoder_of_sparse(rule, 2**20, 4).encode(memoryview(bytes(2**20)))) < 1000


@pytest.fixture(params=[True, False], ids=["kernels", "numpy"])
def kernels_or_none(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffle by the compiled loops, or without them."""
    if request.param:
        kernels.warm_up()
    else:
        monkeypatch.setattr(kernels, "kept", lambda: None)


@pytest.mark.usefixtures("kernels_or_none")
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("nbytes", [4096, 3 * 2**15, 2**20])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_blosc_decodes_what_is_encoded_quickly(itemsize: int, nbytes: int, share: float) -> None:
    """Without zeros, bytes at random do not fit, and are kept as they are."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (nbytes // itemsize, itemsize), np.uint8)
    values[rng.random(len(values)) < share] = 0
    encoder = encoder_of_sparse(QUICK, nbytes, itemsize)
    for content in (values, values[::-1].copy()):  # memory is used again
        encoded = bytes(encoder.encode(content.reshape(-1).data))
        assert Blosc().decode(encoded[:-4]) == content.tobytes()
        assert google_crc32c.value(encoded[:-4]) == int.from_bytes(encoded[-4:], "little")
        assert (len(encoded) == nbytes + 20) == (share == 0)


def test_the_same_chunk_always_gives_the_same_bytes() -> None:
    values = np.random.default_rng(0).standard_normal(2**18, np.float32)
    values[np.random.default_rng(1).random(values.size) < 0.5] = 0
    chunk = values.data.cast("B")
    encoded = {bytes(encoder_of_sparse(QUICK, 2**20, 4).encode(chunk)) for _ in range(3)}
    assert len(encoded) == 1
    assert len(encoded.pop()) < len(encoder_of_sparse(BY_BLOSC, 2**20, 4).encode(chunk))


def test_without_the_zstd_inside_of_blosc_the_earlier_rule_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_zstd", lambda: None)
    assert sparse_rule("float32") == BY_BLOSC
    chunk = memoryview(bytes(2**20))
    encoders = [encoder_of_sparse(rule, 2**20, 4) for rule in (BY_BLOSC, QUICK)]
    assert encoders[0].encode(chunk) == encoders[1].encode(chunk)
