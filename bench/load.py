"""Builds dumps: one with the names, types, shapes, copies and zeros of a real dump, and simpler ones.

The first is built from a profile, which lists the files of one iteration (`tests/data/README.md` describes
its columns). The values are made up: normally distributed, with the standard deviation and the share of zeros
of the original. The others consist of many small tensors, or of one large tensor.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.pt_files import pt_bytes, sglang_file

NET = "TinyBert"
#: Length of the header that MindSpore writes, whatever it contains.
HEADER_BYTES = 128
#: Time of the first rank in its first step, in microseconds since the epoch.
_FIRST_TIMESTAMP = 1_795_222_034_064_380
_STEP_US = 5_000_000
_FILE_US = (45, 180)
"""Shortest and longest time from one file to the next."""
_SMALL_SIZE = 25
"""Number of elements of a small tensor."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One file of the iteration that the profile describes."""

    name: str
    """With `*` in place of the time."""
    descr: str
    shape: tuple[int, ...]
    content: int
    """A number that only files of the same content share."""
    zero_fraction: float
    std: float
    """The standard deviation of the elements that are not zero; 0 if they are all the same."""
    unchanged: bool
    """Whether the previous iteration held the same bytes."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Load:
    """A dump that was built, with totals over all steps and ranks."""

    directory: Path
    files: int
    nbytes: int
    distinct_nbytes: int
    """Without copies within a step."""


def read_profile(path: Path) -> list[ProfileRow]:
    """Read a profile, a CSV file that may be compressed with xz."""
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    return [
        ProfileRow(
            name=row["name"],
            descr=row["descr"],
            shape=tuple(int(n) for n in row["shape"].split("x") if n),
            content=int(row["content"]),
            zero_fraction=float(row["zero_fraction"]),
            std=float(row["std_of_nonzero"]),
            unchanged=row["same_as_previous_step"] == "1",
        )
        for row in csv.DictReader(io.StringIO(text))
    ]


def build(
    profile_path: Path,
    directory: Path,
    *,
    steps: int = 1,
    ranks: int = 1,
    replicated: Callable[[ProfileRow], bool] = lambda _: False,
) -> Load:
    """Write a dump below `directory` as MindSpore does. The same arguments give the same bytes.

    Uses memory for one tensor at a time. Files that the profile marks as unchanged are the same in each step.

    Args:
        profile_path: the profile to build from.
        directory: where to write.
        steps: how many steps of each rank.
        ranks: how many ranks.
        replicated: chooses files that are the same on every rank, together with all files of equal content.
    """
    rows = read_profile(profile_path)
    shared = frozenset(row.content for row in rows if replicated(row))
    files = nbytes = distinct_nbytes = 0
    for rank in range(ranks):
        for step in range(steps):
            load = build_step(rows, directory, rank, step, shared)
            files += load.files
            nbytes += load.nbytes
            distinct_nbytes += load.distinct_nbytes
    return Load(directory, files, nbytes, distinct_nbytes)


def build_step(
    rows: Sequence[ProfileRow], directory: Path, rank: int, step: int, shared: frozenset[int]
) -> Load:
    """Write one step of one rank; `shared` has the contents that are the same on every rank. See `build`."""
    target = directory / f"rank_{rank}" / NET / "0" / str(step)
    target.mkdir(mode=0o700, parents=True)
    files = nbytes = distinct_nbytes = 0
    for paths, header, payload in _contents(rows, target, rank, step, shared):
        for path in paths:
            with path.open("xb", buffering=0) as file:
                file.write(header)
                file.write(payload)
            path.chmod(0o400)
        files += len(paths)
        nbytes += len(paths) * (len(header) + len(payload))
        distinct_nbytes += len(header) + len(payload)
    return Load(directory, files, nbytes, distinct_nbytes)


def read_replicated(path: Path) -> frozenset[str]:
    """Return the names in a profile of the files that were the same on the other rank of its dump."""
    text = lzma.decompress(path.read_bytes()).decode()
    return frozenset(
        row["name"] for row in csv.DictReader(io.StringIO(text)) if row["same_on_other_rank"] == "1"
    )


def _contents(
    rows: Sequence[ProfileRow], target: Path, rank: int, step: int, shared: frozenset[int]
) -> Iterator[tuple[list[Path], bytes, memoryview]]:
    """Yield each distinct content of one step: the files that hold it, its header and its payload."""
    gaps = np.random.default_rng([rank, step]).integers(*_FILE_US, len(rows))
    times = _FIRST_TIMESTAMP + step * _STEP_US + np.cumsum(gaps)
    names = [f"{row.name.replace('*', str(at))}.npy" for row, at in zip(rows, times, strict=True)]
    paths = {row.name: target / name for row, name in zip(rows, names, strict=True)}
    changed = {row.content for row in rows if not row.unchanged}

    def kind(row: ProfileRow) -> tuple[Any, ...]:
        return row.content, row.descr, row.shape

    for _, group in groupby(sorted(rows, key=kind), key=kind):
        same = list(group)
        first = same[0]
        of_rank = 0 if first.content in shared else rank
        seed = [first.content, of_rank, step if first.content in changed else 0]
        payload = np.ascontiguousarray(_values(first, np.random.Generator(np.random.SFC64(seed))))
        yield [paths[row.name] for row in same], npy_header(first.descr, first.shape), payload.data.cast("B")


def _values(row: ProfileRow, rng: np.random.Generator) -> npt.NDArray[Any]:
    dtype = np.dtype(row.descr)
    if row.zero_fraction == 1 and row.std == 0:
        return np.zeros(row.size, dtype)
    if dtype.kind == "f":
        if row.std:
            values = rng.standard_normal(row.size, np.float32).astype(dtype, copy=False)
            values *= dtype.type(row.std)
        else:
            values = np.full(row.size, rng.standard_normal(), dtype)
    elif dtype.kind == "b" or not row.std:
        values = np.full(row.size, row.content + 1).astype(dtype)
    else:
        values = rng.integers(1, 2 + round(row.std * math.sqrt(12)), row.size).astype(dtype)
    if row.zero_fraction > 0:
        # The share is rounded: a tensor of "all" zeros still has an element that tells it from others.
        values[1:][rng.random(row.size - 1, np.float32) < row.zero_fraction] = 0
    return values


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return a header as MindSpore writes it: 128 bytes, a comma after every axis."""
    axes = "".join(f"{n}," for n in shape)
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}), }}"
    body = text.ljust(HEADER_BYTES - 11).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def build_small(directory: Path, *, ranks: int = 1, steps: int = 1, files: int) -> Load:
    """Write a dump of many tensors of 25 float32 (100 bytes); those of one step and rank all differ."""
    header = npy_header("<f4", (_SMALL_SIZE,))
    names = [f"Add.Default_net-Add-op{n}.0.0.{{}}.output.0.DefaultFormat.Float32.npy" for n in range(files)]
    for rank in range(ranks):
        for step in range(steps):
            target = directory / f"rank_{rank}" / "Net" / "0" / str(step)
            target.mkdir(parents=True)
            payloads = np.random.default_rng([rank, step]).standard_normal((files, _SMALL_SIZE), np.float32)
            place, first = str(target), _FIRST_TIMESTAMP + step * _STEP_US
            for number, name in enumerate(names):
                # Without a `Path` for each file: there are hundreds of thousands.
                fd = os.open(
                    f"{place}/{name.format(first + number)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400
                )
                os.write(fd, header + payloads[number].tobytes())
                os.close(fd)
    count = ranks * steps * files
    nbytes = count * (HEADER_BYTES + 4 * _SMALL_SIZE)
    return Load(directory, count, nbytes, nbytes)


def build_alike(directory: Path, *, files: int, size: int, suffix: str) -> Load:
    """Write a dump of one step with many tensors of `size` float32; see `build_as` for `suffix`, and npy."""
    payloads = np.random.default_rng(0).standard_normal((files, size), np.float32)
    return _write_all(directory, suffix, payloads, files * 4 * size)


#: The layout of what `build_alike` and `build_as` write as safetensors.
DECLARED = "rank{rank}/{module}-{io}.{slot}.safetensors"
#: The types of a profile as safetensors names them.
_SAFETENSORS_TYPES = {
    "f4": "F32",
    "f2": "F16",
    "i4": "I32",
    "i8": "I64",
    "u8": "U64",
    "b1": "BOOL",
    "f8": "F64",
}


def build_as(load: Load, directory: Path, suffix: str) -> Load:
    """Write each tensor of a dump of MindSpore into a file of another format: of one rank and step.

    Args:
        load: the dump.
        directory: where to write.
        suffix: `pt` for torch.save of a tensor, `sglang` for torch.save as SGLang's dumper calls it (with a
            counter, a name and the place in the mesh in each file), or `safetensors`.
    """
    tensors = map(np.load, sorted(load.directory.rglob("*.npy")))
    return _write_all(directory, suffix, tensors, load.distinct_nbytes)


def _write_all(
    directory: Path, suffix: str, tensors: Iterable[npt.NDArray[Any]], distinct_nbytes: int
) -> Load:
    target = directory / {"npy": "rank_0/Net/0/0", "sglang": "dump_20260101_000000_000000"}.get(
        suffix, "rank0"
    )
    target.mkdir(parents=True)
    files = nbytes = 0
    for number, values in enumerate(tensors):
        name, content = _file(suffix, number, values)
        (target / name).write_bytes(content)
        files += 1
        nbytes += len(content)
    return Load(directory, files, nbytes, distinct_nbytes)


def _file(suffix: str, number: int, values: npt.NDArray[Any]) -> tuple[str, bytes]:
    """Return the name and the content of a file with one tensor."""
    match suffix:
        case "npy":
            name = f"Add.Add-op{number}.0.0.{_FIRST_TIMESTAMP + number}.output.0.DefaultFormat.npy"
            return name, npy_header(values.dtype.str, values.shape) + values.tobytes()
        case "sglang":
            return sglang_file(values, number)
        case "pt":
            return f"{number}.Add-output.0.pt", pt_bytes(values)
        case _:
            return f"{number}.Add-output.0.safetensors", _safetensors(values)


def _safetensors(values: npt.NDArray[Any]) -> bytes:
    tensor = {
        "dtype": _SAFETENSORS_TYPES[values.dtype.str[1:]],
        "shape": values.shape,
        "data_offsets": [0, values.nbytes],
    }
    return _safetensors_head(tensor) + values.tobytes()


def _safetensors_head(tensor: Mapping[str, object]) -> bytes:
    text = json.dumps({"output": tensor}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def build_large_tensor(directory: Path, nbytes: int) -> Load:
    """Write a dump of one float32 tensor: 64 MiB of random bits, repeated."""
    target = directory / "rank_0" / "Net" / "0" / "0"
    target.mkdir(parents=True)
    block = np.random.default_rng(0).bytes(min(64 * 1024 * 1024, nbytes))
    name = f"Add.Default_net-Add-op0.0.0.{_FIRST_TIMESTAMP}.output.0.DefaultFormat.Float32.npy"
    with (target / name).open("xb", buffering=0) as file:
        file.write(npy_header("<f4", (nbytes // 4,)))
        for start in range(0, nbytes, len(block)):
            file.write(memoryview(block)[: nbytes - start])
    return Load(directory, 1, HEADER_BYTES + nbytes, HEADER_BYTES + nbytes)
