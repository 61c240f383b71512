"""Codecs: bytes, and the speed of one core, on values of several kinds.

Of the real dumps, which are small: their payloads, packed into chunks as ingesting packs them. Of a net that
is trained here: tensors as large as those of real nets, and with values as training makes them. Of the large
profile: the real sizes, types and shares of zeros; but its values are made up, so its bytes say least.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numcodecs import Blosc, Zstd, blosc

from bench.measure import Table, shown
from bench.parts.encoders import packed_arrays
from bench.setting import Setting
from bench.stages import Stages, plans
from bench.trained import trained_tensors
from tests.dumps import unpack
from workers.model import MIB

#: Real dumps that hold more than a few bytes.
_REAL = ("dtypes-1rank", "lenet-1rank", "lenet-4rank", "nan-log-2rank", "tinybert-2rank")
_SHUFFLES = {"none": Blosc.NOSHUFFLE, "bytes": Blosc.SHUFFLE, "bits": Blosc.BITSHUFFLE}
_KIB = 1024
#: What stored bytes take beside encoding: a local disk; object storage, as one worker reaches it.
_DISK, _S3 = 1.0, 0.2
"""GB/s."""


class Codec(Protocol):
    """What numcodecs calls one."""

    def encode(self, data: Any) -> Any:
        """Compress."""

    def decode(self, data: Any) -> Any:
        """Decompress."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A codec with its parameters."""

    name: str
    level: int
    shuffle: str = "none"
    block: int = 0
    """Bytes; 0 leaves it to blosc."""

    def codec(self, typesize: int) -> Codec | None:
        """Return the codec for elements of a size; None for none."""
        if self.name == "none":
            return None
        if self.name == "zstd alone":
            return Zstd(self.level)  # type: ignore[no-any-return]
        return Blosc(self.name, self.level, _SHUFFLES[self.shuffle], self.block, typesize=typesize)  # type: ignore[no-any-return]

    @property
    def label(self) -> str:
        """What the table calls it."""
        parts = [self.name, f"level {self.level}" if self.name != "none" else ""]
        parts += [f"shuffled {self.shuffle}" if self.shuffle != "none" else ""]
        parts += [f"blocks of {self.block // _KIB} KiB" if self.block else ""]
        return ", ".join(filter(None, parts))


def measure(setting: Setting) -> Iterator[Table]:
    """Yield a table for the real dumps, and one for the large profile."""
    blosc.use_threads = False
    with setting.target() as unpacked:
        unpacked.mkdir()
        real = [chunk for name in _REAL for chunk in chunks(unpack(name, unpacked) / "dump")]
    yield _table("Codecs, real dumps", real, setting)
    tensors = trained_tensors(4 if setting.quick else 20)
    for dtype in (np.float32, np.float16):
        data = b"".join(values.astype(dtype).tobytes() for values in tensors.values())
        found = cut(data, np.dtype(dtype).itemsize)
        yield _table(
            f"Codecs, a net trained by numpy, {np.dtype(dtype)}", found[:: 8 if setting.quick else 1], setting
        )
    large = chunks(setting.load.directory)
    yield _table("Codecs, large profile", large[:: 16 if setting.quick else 4], setting)


def choices(*, quick: bool) -> list[Choice]:
    """Return what is compared."""
    if quick:
        return [
            Choice("none", 0),
            Choice("lz4", 5, "bits"),
            Choice("lz4", 5, "bytes"),
            Choice("zstd", 1, "bits"),
        ]
    found = [Choice("none", 0), Choice("zstd alone", 1), Choice("zstd alone", 3)]
    levels = {"lz4": (1, 5, 9), "blosclz": (5, 9), "zstd": (1, 3)}
    found += [Choice(n, level, shuffle) for n in levels for shuffle in _SHUFFLES for level in levels[n]]
    found += [Choice("lz4", 5, "bits", size * _KIB) for size in (32, 64, 256, 1024)]
    found += [Choice("zstd", 1, "bits", size * _KIB) for size in (256, 1024)]
    return found


def chunks(dump: Path) -> list[tuple[int, bytes]]:
    """Return (element size, bytes) of each chunk of tensors, the last one of an array as it is."""
    arrays = [one for plan in plans(dump, dump, Stages()) for one in packed_arrays(plan)]
    return [
        chunk
        for one in arrays
        if one.spec.path != "files"
        for chunk in cut(one.data.tobytes(), one.spec.itemsize, one.spec.chunk_nbytes)
    ]


def cut(data: bytes, itemsize: int, nbytes: int = MIB) -> list[tuple[int, bytes]]:
    """Return packed elements in chunks."""
    return [(itemsize, data[start : start + nbytes]) for start in range(0, len(data), nbytes)]


def _table(title: str, found: Sequence[tuple[int, bytes]], setting: Setting) -> Table:
    raw = sum(len(data) for _, data in found)
    compared = choices(quick=setting.quick)
    rounds = min(setting.rounds, 3) * (5 if raw < 16 * MIB else 1)
    # In turns, and the fastest of each, in seconds of the processor: others may use it, too.
    runs = [[_run(choice, found) for choice in compared] for _ in range(rounds)]
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
        f"{raw / 1e6:.1f} MB in {len(found)} chunks, one core, the fastest of {rounds} rounds. The last two "
        f"columns: encoding, then writing what is stored at {_DISK:g} and at {_S3:g} GB/s."
    )
    return Table(title, columns, tuple(rows), note)


@dataclass(frozen=True, slots=True)
class _Result:
    stored: int
    encode_s: float
    decode_s: float


def _run(choice: Choice, found: Sequence[tuple[int, bytes]]) -> _Result:
    """Encode and decode everything once."""
    stored = 0
    encode_s = decode_s = 0.0
    for typesize, data in found:
        codec = choice.codec(typesize)
        started = time.thread_time()
        encoded = codec.encode(data) if codec else bytearray(data)
        encode_s += time.thread_time() - started
        started = time.thread_time()
        decoded = codec.decode(encoded) if codec else bytearray(encoded)
        decode_s += time.thread_time() - started
        assert len(decoded) == len(data)
        stored += len(encoded)
    return _Result(stored, encode_s, decode_s)
