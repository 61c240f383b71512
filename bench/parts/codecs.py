"""Codecs: compressed size, and speed on one core, for several kinds of values.

- Real dumps, which are small: their payloads, packed into chunks as ingesting packs them.
- A net that is trained here: tensors of realistic sizes, with values as training produces them.
- The large profile: real sizes, types and shares of zeros, but made-up values: it says least about sizes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ml_dtypes import bfloat16
from numcodecs import Blosc, Zstd, blosc

from bench.measure import Table, shown
from bench.parts.encoders import packed_arrays
from bench.setting import Setting
from bench.stages import Stages, plans
from bench.trained import trained_tensors
from tests.stores import unpack
from workers.model import MIB

#: The real dumps that are not tiny.
_REAL = ("dtypes-1rank", "lenet-1rank", "lenet-4rank", "nan-log-2rank", "tinybert-2rank")
_SHUFFLES = {"none": Blosc.NOSHUFFLE, "bytes": Blosc.SHUFFLE, "bits": Blosc.BITSHUFFLE}
_KIB = 1024
#: How fast encoded bytes are stored: on a local disk; in object storage, by one worker.
_DISK, _S3 = 1.0, 0.2
"""GB/s."""


class Codec(Protocol):
    """A codec of numcodecs."""

    def encode(self, data: Any) -> Any:
        """Compress a buffer."""

    def decode(self, data: Any) -> Any:
        """Decompress a buffer."""


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """A codec with its parameters."""

    name: str
    level: int
    shuffle: str = "none"
    block: int = 0
    """Block size in bytes; 0: blosc decides."""

    def codec(self, typesize: int) -> Codec | None:
        """Return the codec for elements of `typesize` bytes; None to store them as they are."""
        if self.name == "none":
            return None
        if self.name == "zstd alone":
            return Zstd(self.level)  # type: ignore[no-any-return]
        return Blosc(self.name, self.level, _SHUFFLES[self.shuffle], self.block, typesize=typesize)  # type: ignore[no-any-return]

    @property
    def label(self) -> str:
        """The name of the choice in the table."""
        parts = [self.name, f"level {self.level}" if self.name != "none" else ""]
        parts += [f"shuffled {self.shuffle}" if self.shuffle != "none" else ""]
        parts += [f"blocks of {self.block // _KIB} KiB" if self.block else ""]
        return ", ".join(filter(None, parts))


def measure(setting: Setting) -> Iterator[Table]:
    """Yield a table for each kind of values."""
    blosc.use_threads = False
    with setting.target() as unpacked:
        unpacked.mkdir()
        real = [chunk for name in _REAL for chunk in chunks(unpack(name, unpacked) / "dump")]
    yield _table("Codecs, real dumps", real, setting)
    tensors = trained_tensors(4 if setting.quick else 20)
    for dtype in (np.float32, np.float16, bfloat16):
        data = b"".join(values.astype(dtype).tobytes() for values in tensors.values())
        trained = cut(data, np.dtype(dtype).itemsize)[:: 8 if setting.quick else 1]
        yield _table(f"Codecs, a net trained by numpy, {np.dtype(dtype)}", trained, setting)
    large = chunks(setting.load.directory)
    yield _table("Codecs, large profile", large[:: 16 if setting.quick else 4], setting)


def choices(*, quick: bool) -> list[CodecChoice]:
    """Return the codecs to compare."""
    if quick:
        return [
            CodecChoice("none", 0),
            CodecChoice("lz4", 5, "bits"),
            CodecChoice("lz4", 5, "bytes"),
            CodecChoice("zstd", 1, "bits"),
        ]
    levels = {"lz4": (1, 5, 9), "blosclz": (5, 9), "zstd": (1, 3)}
    return [
        CodecChoice("none", 0),
        CodecChoice("zstd alone", 1),
        CodecChoice("zstd alone", 3),
        *(CodecChoice(n, level, shuffle) for n in levels for shuffle in _SHUFFLES for level in levels[n]),
        *(CodecChoice("lz4", 5, "bits", size * _KIB) for size in (32, 64, 256, 1024)),
        *(CodecChoice("zstd", 1, "bits", size * _KIB) for size in (256, 1024)),
        *(CodecChoice("zstd", level, "bytes", 1024 * _KIB) for level in (1, 3)),
        *(CodecChoice("zstd", level, "bits", 1024 * _KIB) for level in (3, 9)),
    ]


def chunks(dump: Path) -> list[tuple[int, bytes]]:
    """Return (element size, bytes) of each chunk of tensors; the last chunk of an array may be shorter."""
    arrays = [packed for plan in plans(dump, dump, Stages()) for packed in packed_arrays(plan)]
    return [
        chunk
        for packed in arrays
        if packed.spec.path != "files"
        for chunk in cut(packed.data.tobytes(), packed.spec.itemsize, packed.spec.chunk_nbytes)
    ]


def cut(data: bytes, itemsize: int, nbytes: int = MIB) -> list[tuple[int, bytes]]:
    """Cut packed elements into chunks; return (element size, bytes) of each."""
    return [(itemsize, data[start : start + nbytes]) for start in range(0, len(data), nbytes)]


def _table(title: str, data_chunks: Sequence[tuple[int, bytes]], setting: Setting) -> Table:
    raw = sum(len(data) for _, data in data_chunks)
    compared = choices(quick=setting.quick)
    rounds = min(setting.rounds, 3) * (5 if raw < 16 * MIB else 1)
    # In turns, the fastest of each, in processor time: other processes may be running.
    runs = [[_run(choice, data_chunks) for choice in compared] for _ in range(rounds)]
    rows = []
    for choice, results in zip(compared, zip(*runs, strict=True), strict=True):
        share = results[0].stored / raw
        encode = raw / 1e9 / min(result.encode_s for result in results)
        decode = raw / 1e9 / min(result.decode_s for result in results)
        rows.append(
            (
                choice.label,
                f"{share:.3f}",
                shown(encode),
                shown(decode),
                shown(1 / encode + share / _DISK),
                shown(1 / encode + share / _S3),
            )
        )
    columns = ("codec", "stored / raw", "encode GB/s", "decode GB/s", "s/GB, disk", "s/GB, S3")
    note = (
        f"{raw / 1e6:.1f} MB in {len(data_chunks)} chunks, one core, the fastest of {rounds} rounds. "
        f"The last two columns: encoding, then storing the result at {_DISK:g} and at {_S3:g} GB/s. "
        f"A codec that codes each plane of bytes by its frequencies, and nothing else, would store at least "
        f"{_planes_entropy(data_chunks):.3f} of the raw bytes."
    )
    return Table(title, columns, tuple(rows), note)


def _planes_entropy(data_chunks: Sequence[tuple[int, bytes]]) -> float:
    """Return what coding each byte of the elements by its frequency would store, as a share of the bytes."""
    stored = raw = 0.0
    for itemsize, data in data_chunks:
        planes = np.frombuffer(data, np.uint8)[: len(data) // itemsize * itemsize].reshape(-1, itemsize)
        for plane in planes.T:
            count = np.bincount(plane, minlength=256)
            frequent = count[count > 0]
            stored += float((frequent * np.log2(len(plane) / frequent)).sum()) / 8
        raw += planes.size
    return stored / raw


@dataclass(frozen=True, slots=True)
class _CodecResult:
    stored: int
    encode_s: float
    decode_s: float


def _run(choice: CodecChoice, data_chunks: Sequence[tuple[int, bytes]]) -> _CodecResult:
    """Encode and decode all chunks once."""
    stored = 0
    encode_s = decode_s = 0.0
    for typesize, data in data_chunks:
        codec = choice.codec(typesize)
        started = time.thread_time()
        encoded = codec.encode(data) if codec else bytearray(data)
        encode_s += time.thread_time() - started
        started = time.thread_time()
        decoded = codec.decode(encoded) if codec else bytearray(encoded)
        decode_s += time.thread_time() - started
        assert len(decoded) == len(data)
        stored += len(encoded)
    return _CodecResult(stored, encode_s, decode_s)
