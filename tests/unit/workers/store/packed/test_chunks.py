"""Chunks are those of Blosc, byte for byte, whatever they hold; what this cannot encode, Blosc does."""

from collections.abc import Iterator
from unittest.mock import Mock

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
from numcodecs import Blosc

from workers.arrays.compiled import kernels
from workers.arrays.compiled.chunk_plan import ITEMSIZES, STREAM_NBYTES
from workers.model import MIB
from workers.store.packed import chunks
from workers.store.packed.chunks import (
    BIT_SHUFFLE,
    CONFIGURATION,
    HEADER,
    LEVEL,
    QUICK,
    SHUFFLE,
    ByBlosc,
    ChunkDecoder,
    ChunkEncoder,
    ShuffledLz4,
    compressor,
    decompress,
    encoder_of,
    encoder_of_sparse,
    is_as_encoded,
    is_sparse,
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


ANOTHER_RNG = np.random.default_rng(23)


@pytest.fixture(autouse=True)
def worth(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Decode here from the first byte on, and compare with Blosc again: a test may change either."""
    monkeypatch.setattr(chunks, "_WORTH_NBYTES", 0)
    is_exact = chunks._decodes_exactly
    is_exact.cache_clear()
    yield
    is_exact.cache_clear()


def with_crc(body: bytes) -> memoryview:
    return memoryview(body + google_crc32c.value(body).to_bytes(4, "little"))


def decoder(itemsize: int, chunk_nbytes: int = MIB) -> ChunkDecoder:
    codec = compressor("lz4", LEVEL, BIT_SHUFFLE, itemsize)
    return ChunkDecoder(codec, CONFIGURATION | {"typesize": itemsize}, chunk_nbytes)


def decoded(body: bytes, itemsize: int, chunk_nbytes: int = MIB) -> bytes:
    """Decode with memory around the result, in which nothing may be written."""
    around = np.full(chunk_nbytes + 128, 77, np.uint8)
    decoder(itemsize, chunk_nbytes).decode(with_crc(body), around[64:-64].data)
    assert (around[:64] == 77).all()
    assert (around[-64:] == 77).all()
    return around[64:-64].tobytes()


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("chunk_nbytes", [MIB, 3 * MIB, MIB + 40])
def test_chunks_decode_as_by_blosc(itemsize: int, chunk_nbytes: int) -> None:
    for name, content in contents(chunk_nbytes // 8 * 8).items():
        body = compressor("lz4", LEVEL, BIT_SHUFFLE, itemsize).encode(content)
        assert decoded(body, itemsize, content.nbytes) == content.tobytes(), name


def test_the_kernels_decode_what_the_encoder_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock(wraps=decompress)
    monkeypatch.setattr(chunks, "decompress", calls)
    content = ANOTHER_RNG.standard_normal(MIB // 4, np.float32).view(np.uint8)
    body = compressor("lz4", LEVEL, BIT_SHUFFLE, 4).encode(content)
    assert decoded(body, 4) == content.tobytes()
    assert calls.call_count == 2  # the sample, and the chunk


@pytest.mark.parametrize(
    ("shuffle", "level", "itemsize"), [(SHUFFLE, 5, 4), (BIT_SHUFFLE, 9, 4), (BIT_SHUFFLE, 5, 3)]
)
def test_blosc_decodes_everything_else(shuffle: int, level: int, itemsize: int) -> None:
    content = ANOTHER_RNG.integers(0, 8, MIB, np.uint8)
    body = compressor("lz4", level, shuffle, itemsize).encode(content)
    assert decoded(body, 4) == content.tobytes()


def test_blosc_decodes_without_kernels_and_small_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    content = ANOTHER_RNG.integers(0, 8, MIB, np.uint8)
    body = compressor("lz4", LEVEL, BIT_SHUFFLE, 4).encode(content)
    monkeypatch.setattr(chunks, "decompress", None)
    monkeypatch.setattr(chunks, "_WORTH_NBYTES", 1 << 60)
    assert decoded(body, 4) == content.tobytes()
    monkeypatch.setattr(chunks, "_WORTH_NBYTES", 0)
    monkeypatch.setattr(chunks, "_lz4_decompress", lambda: None)
    assert decoded(body, 4) == content.tobytes()
    monkeypatch.setattr(kernels, "kept", lambda: None)
    assert decoded(body, 4) == content.tobytes()


def test_checksum_and_size_are_checked() -> None:
    body = compressor("lz4", LEVEL, BIT_SHUFFLE, 4).encode(np.zeros(MIB, np.uint8))
    into = memoryview(bytearray(MIB))
    with pytest.raises(ValueError, match="crc32c does not match"):
        decoder(4).decode(memoryview(body + bytes(4)), into)
    with pytest.raises(ValueError, match="crc32c does not match"):
        decoder(4).decode(memoryview(b"ab"), into)
    with pytest.raises(ValueError, match="states another size"):
        decoder(4, 2 * MIB).decode(with_crc(body), memoryview(bytearray(2 * MIB)))
    with pytest.raises(ValueError, match="bytes of memory"):
        decoder(4).decode(with_crc(body), into[:-1])


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (HEADER.size, 0, "within the header"),
        (HEADER.size, HEADER.size + 4, "within the header"),
        (HEADER.size, 1 << 31, "behind the end"),
        (HEADER.size + 4, -1, "behind the end"),
        ("first", 0, "damaged"),
        ("first", 1, "damaged"),
        ("first", STREAM_NBYTES + 1, "too long"),
        ("first", -1, "too long"),
        ("first", STREAM_NBYTES - 1, "damaged|too long"),
    ],
)
def test_impossible_places_and_lengths_are_refused(at: int | str, value: int, why: str) -> None:
    content = ANOTHER_RNG.integers(0, 8, MIB, np.uint8)
    body = bytearray(compressor("lz4", LEVEL, BIT_SHUFFLE, 4).encode(content))
    place = int.from_bytes(body[HEADER.size : HEADER.size + 4], "little") if isinstance(at, str) else at
    body[place : place + 4] = (value % 2**32).to_bytes(4, "little")
    with pytest.raises(RuntimeError, match=why):
        decoded(bytes(body), 4)


def damage(body: bytearray, rng: np.random.Generator) -> bytes:
    """Return a chunk in which places, lengths or content are changed, and whose header fits."""
    match rng.integers(4):
        case 0:
            del body[int(rng.integers(HEADER.size, len(body))) :]
        case 1:
            at = int(rng.integers(HEADER.size, HEADER.size + 12))
            body[at] = rng.integers(256)
        case _:
            for at in rng.integers(HEADER.size, len(body), rng.integers(1, 40)).tolist():
                body[at] = rng.integers(256)
    body[12:16] = len(body).to_bytes(4, "little")
    return bytes(body)


def fuzz(rounds: int, seed: int) -> int:
    """Decode damaged chunks; return how many were refused."""
    rng, refused = np.random.default_rng(seed), 0
    for _ in range(rounds):
        itemsize = int(rng.choice(ITEMSIZES))
        content = rng.integers(0, rng.choice([1, 2, 8, 256]), STREAM_NBYTES * itemsize, np.uint8)
        content[rng.integers(content.size) :] = 0
        body = damage(bytearray(compressor("lz4", LEVEL, BIT_SHUFFLE, itemsize).encode(content)), rng)
        around = np.full(content.size + 128, 77, np.uint8)
        if is_as_encoded(memoryview(body), itemsize):
            kernels_of = chunks._kernels(itemsize)
            assert kernels_of is not None
            try:
                decompress(with_crc(body), around[64:-64].data, itemsize, kernels_of)
            except RuntimeError:
                refused += 1
        assert (around[:64] == 77).all()
        assert (around[-64:] == 77).all()
    return refused


def test_damaged_chunks_never_crash() -> None:
    assert fuzz(60, seed=7) > 20


@pytest.mark.parametrize(("share", "sparse"), [(0, False), (0.05, False), (0.25, True), (1, True)])
def test_a_chunk_is_sparse_by_its_share_of_zeros(share: float, *, sparse: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(2**16, np.float32)
    values[rng.random(values.size) < share] = 0
    assert is_sparse(values.data.cast("B"), 4) is sparse


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
