"""Chunks are those of Blosc, byte for byte, whatever they hold; what this cannot encode, Blosc does."""

from collections.abc import Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest

from workers.arrays.compiled import kernels
from workers.arrays.compiled.chunk_plan import ITEMSIZES
from workers.model import MIB
from workers.store.packed import chunks
from workers.store.packed.chunks import (
    BIT_SHUFFLE,
    LEVEL,
    ByBlosc,
    ChunkEncoder,
    ShuffledLz4,
    compressor,
    encoder_of,
)

RNG = np.random.default_rng(22)


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """The objects, made now if `make setup` has not done it."""
    kernels.warm_up()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Compare encoders with Blosc again: a test may change either."""
    is_exact = chunks._is_exact
    is_exact.cache_clear()
    yield
    is_exact.cache_clear()


def blosc_of(itemsize: int) -> ByBlosc:
    return ByBlosc(compressor("lz4", LEVEL, BIT_SHUFFLE, itemsize))


def encoder(itemsize: int, chunk_nbytes: int = MIB, **changes: object) -> ChunkEncoder:
    wanted = {"cname": "lz4", "clevel": LEVEL, "shuffle": "bitshuffle", "typesize": itemsize, "blocksize": 0}
    return encoder_of(compressor("lz4", LEVEL, BIT_SHUFFLE, itemsize), wanted | changes, chunk_nbytes)


def contents(nbytes: int) -> dict[str, npt.NDArray[np.uint8]]:
    noise = RNG.integers(0, 256, nbytes, np.uint8)
    ends_in_noise = np.zeros(nbytes, np.uint8)
    ends_in_noise[nbytes // 2 :] = noise[nbytes // 2 :]
    begins_with_noise = ends_in_noise[::-1].copy()
    # All but a few bytes cannot be compressed: the chunk is just below, or just above, what a copy takes.
    nearly = [np.where(np.arange(nbytes) < zeros, 0, noise).astype(np.uint8) for zeros in (40, 400, 4000)]
    normal = RNG.standard_normal(nbytes // 4, np.float32)
    sparse = np.where(RNG.random(normal.size) < 0.9, 0, normal).astype(np.float32)
    return {
        "noise": noise,
        "zeros": np.zeros(nbytes, np.uint8),
        "ends in noise": ends_in_noise,
        "begins with noise": begins_with_noise,
        "float32": normal.view(np.uint8),
        "float16": RNG.standard_normal(nbytes // 2, np.float32).astype(np.float16).view(np.uint8),
        "float64": RNG.standard_normal(nbytes // 8).view(np.uint8),
        "sparse": sparse.view(np.uint8),
        "counted": np.arange(nbytes // 4, dtype=np.int32).view(np.uint8),
        **{f"nearly {number}": content for number, content in enumerate(nearly)},
    }


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("chunk_nbytes", [MIB, 3 * MIB])
def test_chunks_are_those_of_blosc(itemsize: int, chunk_nbytes: int) -> None:
    ours, reference = encoder(itemsize, chunk_nbytes), blosc_of(itemsize)
    assert isinstance(ours, ShuffledLz4)
    for name, content in contents(chunk_nbytes).items():
        encoded = bytes(ours.encode(content.data))
        assert encoded == reference.encode(content.data), name
        body, checksum = encoded[:-4], encoded[-4:]
        assert google_crc32c.value(body).to_bytes(4, "little") == checksum


def test_chunks_may_be_read_only() -> None:
    content = bytes(range(256)) * 4096
    assert encoder(4).encode(memoryview(content)) == blosc_of(4).encode(memoryview(content))


@pytest.mark.parametrize(
    ("itemsize", "chunk_nbytes", "changes"),
    [
        (4, MIB + 4, {}),
        (4, 1000, {}),
        (8, MIB // 2, {}),
        (3, 3 * MIB, {}),
        (4, MIB, {"cname": "zstd"}),
        (4, MIB, {"clevel": 9}),
        (4, MIB, {"shuffle": "shuffle"}),
        (4, MIB, {"blocksize": MIB}),
    ],
)
def test_blosc_encodes_everything_else(itemsize: int, chunk_nbytes: int, changes: dict[str, object]) -> None:
    assert isinstance(encoder(itemsize, chunk_nbytes, **changes), ByBlosc)


def test_blosc_encodes_until_kernels_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "kept", lambda: None)
    assert isinstance(encoder(4), ByBlosc)


def test_another_blosc_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_ACCELERATION", 60)
    assert isinstance(encoder(4), ByBlosc)


def test_libraries_that_show_nothing_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    content = RNG.standard_normal(MIB // 4, np.float32).view(np.uint8).data
    expected = bytes(encoder(4).encode(content))
    monkeypatch.setattr(chunks, "crc32c_function", lambda: None)
    assert encoder(4).encode(content) == expected
    monkeypatch.setattr(chunks, "_lz4", lambda: None)
    chunks._is_exact.cache_clear()
    assert encoder(4).encode(content) == expected
    assert isinstance(encoder(4), ByBlosc)
