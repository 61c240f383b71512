"""Check a store independently, with zarr-python, numpy and xxhash.

Of the project, only the module that registers bfloat16 with Zarr is used, for stores of earlier versions.
The checker relies on nothing but the documentation of the store: the commit is the `zarr.json` of a leaf,
the index has a row for each tensor and for each file without tensors, and a payload is a range of a packed
array. Tensors that were converted from the layout of an accelerator are converted back by the formulas of
`tests.device_writer`.
"""

import math
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import fsspec
import ml_dtypes
import numpy as np
import numpy.typing as npt
import xxhash
import zarr

from tests import device_writer
from tests.servers.ceph import S3Bucket
from workers.store.zarr_dtypes import register

register()  # zarr-python 3.1 does not load the type on its own

#: Marks an inner chunk that was never written, in the index of a shard.
_MISSING = 2**64 - 1


@dataclass(frozen=True, slots=True)
class File:
    """One source file as the store holds it."""

    source: str
    kind: str
    problem: str
    content: bytes
    """All bytes of the file, joined from the rows that hold its parts."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One committed step of one rank."""

    rank: int
    step: int | None
    record: dict[str, Any]
    files: dict[str, File]

    @property
    def status(self) -> str:
        """`complete` or `partial`."""
        return str(self.record["summary"]["status"])


def leaves(store: Path) -> list[Leaf]:
    """Read everything that is committed. Raise AssertionError if anything is missing or wrong."""
    return [read_leaf(commit.parent) for commit in sorted(_commits(store))]


def _commits(store: Path) -> list[Path]:
    """Return the paths of all commits in a store."""
    return [*store.glob("rank_*/step_*/zarr.json"), *store.glob("rank_*/run/zarr.json")]


def read_leaf(directory: Path) -> Leaf:
    """Read every byte of one committed step. Raise AssertionError if anything is missing or wrong."""
    group = zarr.open_group(directory, mode="r")
    record: Any = group.attrs["dump_ingest"]
    generation = group[record["fingerprint"]]
    assert isinstance(generation, zarr.Group)
    rank = int(directory.parent.name.removeprefix("rank_"))
    step = None if directory.name == "run" else int(directory.name.removeprefix("step_"))
    assert (record["rank"], record["step"]) == (rank, step)
    return Leaf(rank, step, record, {file.source: file for file in _files(generation, directory, record)})


def check(store: Path, dump: Path, *, partial: frozenset[str] = frozenset()) -> list[Leaf]:
    """Compare a store with its dump: it must hold every file exactly once, byte for byte.

    Return the committed steps. `partial` names the files that may be quarantined; every other file must be
    readable as what it claims to be.
    """
    committed = leaves(store)
    stored: dict[str, File] = {}
    for leaf in committed:
        twice = leaf.files.keys() & stored.keys()
        assert not twice, f"in two steps: {twice}"
        stored |= leaf.files
        _check_status(leaf, partial)
    originals = {str(path.relative_to(dump)): path for path in dump.rglob("*") if path.is_file()}
    assert stored.keys() == originals.keys()
    for source, path in originals.items():
        assert stored[source].content == path.read_bytes(), f"{source} differs"
    return committed


def _check_status(leaf: Leaf, partial: frozenset[str]) -> None:
    quarantined = {file.source for file in leaf.files.values() if file.kind == "quarantined"}
    assert quarantined <= partial, f"quarantined: {quarantined - partial}"
    assert leaf.status == ("partial" if quarantined else "complete")


def download(bucket: S3Bucket, into: Path) -> Path:
    """Copy every object of a store in a bucket into a directory, and return the directory."""
    for key, data in objects(bucket).items():
        target = into / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return into


def objects(store: S3Bucket | Path) -> dict[str, bytes]:
    """Return every object of a store by its key."""
    if isinstance(store, Path):
        return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file()}
    files = fsspec.filesystem("s3", **store.storage_options)
    base = store.url.removeprefix("s3://")
    # A commit that appears during the listing is left out: the listing may lack objects that it refers to.
    before = set(files.find(base, refresh=True))
    names = [n for n in files.find(base, refresh=True) if n in before or not n.endswith("/zarr.json")]
    contents = files.cat_ranges(names, None, None) if names else []
    return {name.removeprefix(f"{base}/"): data for name, data in zip(names, contents, strict=True)}


def versions(store: S3Bucket | Path) -> dict[str, tuple[Any, ...]]:
    """Return the version of each object by its key; it changes with each write, even of the same bytes."""
    if isinstance(store, Path):
        stats = {str(p.relative_to(store)): p.stat() for p in store.rglob("*") if p.is_file()}
        return {key: (stat.st_ino, stat.st_mtime_ns) for key, stat in stats.items()}
    files = fsspec.filesystem("s3", **store.storage_options)
    details = files.find(store.url, detail=True, refresh=True)
    return {name: (info["ETag"], info["LastModified"]) for name, info in details.items()}


class Reader:
    """Reads a store repeatedly while others write it, for the duration of the `with` block.

    The end of the block raises AssertionError if any commit was visible whose data was missing or wrong.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._error: BaseException | None = None
        self.seen: dict[Path, bytes] = {}
        """The commit of each leaf of which every byte was read."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        try:
            while not self._stop.wait(0.02):
                for path in _commits(self._store):
                    commit = path.read_bytes()
                    if self.seen.get(path.parent) != commit:
                        read_leaf(path.parent)
                        self.seen[path.parent] = commit
        except BaseException as exc:  # noqa: BLE001  (raised again at the end of the block)
            self._error = exc


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the index; labels, numbers and statistics by the names of their columns."""

    text: dict[str, str]
    number: dict[str, int]
    shape: tuple[int, ...]
    digest: bytes
    statistics: dict[str, float]


def _rows(generation: zarr.Group) -> Iterator[_Row]:
    labels, numbers, statistics = (
        _columns(generation, path) for path in ("index/labels", "index/numbers", "statistics")
    )
    shapes, digests = _read(generation, "index/shape"), _read(generation, "index/digest")
    for row, shape in enumerate(shapes):
        number = {name: int(column[row]) for name, column in numbers.items()}
        lengths = tuple(int(length) for length in shape if length >= 0)
        assert len(lengths) == number["ndim"]
        yield _Row(
            {name: str(column[row]) for name, column in labels.items()},
            number,
            lengths,
            digests[row].tobytes(),
            {name: float(column[row]) for name, column in statistics.items()},
        )


def _files(generation: zarr.Group, directory: Path, record: dict[str, Any]) -> Iterator[File]:
    """Yield every source file, joined from its rows: the lead of each payload, the payload, and its tail."""
    rows = list(_rows(generation))
    _check_totals(rows, record["summary"])
    packed: dict[str, npt.NDArray[Any]] = {}
    rows_of_file: dict[str, list[_Row]] = {}
    for row in rows:
        if row.text["kind"] != "statistics":
            rows_of_file.setdefault(row.text["source"], []).append(row)
    for row in rows:
        if row.text["kind"] == "statistics":
            assert (row.text["array"], row.number["offset"], row.number["nbytes"]) == ("", -1, 0)
            # The statistics come from a table, which is stored as a file of its own.
            assert row.text["statistics_from"] in rows_of_file
    for source, members in rows_of_file.items():
        parts = [(row, _payload(row, generation, directory, packed)) for row in members]
        yield File(source, members[0].text["kind"], members[0].text["problem"], _joined(source, parts))


def _joined(source: str, parts: list[tuple[_Row, bytes]]) -> bytes:
    """Return the content of a source file from its rows and their payloads; they must leave no gap."""
    content = b""
    source_size = parts[0][0].number["source_size"]
    for row, payload in sorted(parts, key=lambda part: part[0].number["source_offset"]):
        content += row.text["lead"].encode("latin-1")
        if row.number["source_nbytes"]:  # a view has no bytes of its own
            assert row.number["source_offset"] == len(content), f"{source} has a gap"
            content += _as_in_source(row, payload)
        content += row.text["tail"].encode("latin-1")
        assert row.number["source_size"] == source_size, source
    assert len(content) == source_size, source
    return content


def _payload(
    row: _Row, generation: zarr.Group, directory: Path, packed: dict[str, npt.NDArray[Any]]
) -> bytes:
    """Return the stored payload of a row in the byte order of the dump, and check the row against it."""
    path, offset, size = row.text["array"], row.number["offset"], row.number["size"]
    payload = b""
    if size:
        assert offset >= 0, f"{row.text['source']} has no bytes"
        if path not in packed:
            packed[path] = _read(_holder(generation, directory, path), path)
        values = packed[path][offset : offset + size]
        assert len(values) == size, f"{path} is too short"
        _assert_written(generation, directory, path, offset, size)
        payload = _as_dumped(values, path)
        if row.text["statistics_from"] == "computed":
            _check_statistics(row.statistics, _elements(row, values))
    assert len(payload) == row.number["nbytes"]
    assert xxhash.xxh3_128_digest(payload) == row.digest, row.text["source"]
    return payload


def _as_in_source(row: _Row, payload: bytes) -> bytes:
    """Return the payload as the source file has it, converted back to device layout if it was converted."""
    if row.text["layout"] == "host":
        payload = _to_device(row, _cells(row, payload).reshape(row.shape)).tobytes()
    assert len(payload) == row.number["source_nbytes"], row.text["source"]
    return payload


def _elements(row: _Row, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the elements of a tensor as a flat array, whatever their stored layout and type."""
    size = math.prod(row.shape)
    if row.text["layout"] == "device":
        cells = _cells(row, values.tobytes())
        # The place of each element: an array that numbers its elements from 1, in device layout.
        numbered = _to_device(row, np.arange(1, size + 1).reshape(row.shape)).reshape(-1)
        host = np.empty(size, cells.dtype)
        host[numbered[numbered > 0] - 1] = cells[numbered > 0]
        values = host.view(values.dtype)
    if row.text["array"].endswith("/bytes"):
        values = _decoded(values, row.text["dtype"])[:size]
    assert values.size == size
    return values


#: Types of which several elements share a byte, and the number of bits per element.
_BITS = {"uint1": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


def _decoded(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return the elements of a type that Zarr does not have, decoded from bytes."""
    if dtype == "complex32":
        return values.view("<f2").astype("<f4").view("<c8")
    if dtype == "uint1":
        return np.unpackbits(values)
    if dtype not in _BITS:
        return values.view(dtype)
    width = _BITS[dtype]
    codes = np.unpackbits(values, bitorder="little").reshape(-1, width) @ (1 << np.arange(width))
    if dtype == "float4_e2m1fn":
        return np.asarray(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7] * np.where(codes & 8, -1, 1))
    sign = codes >> (width - 1) if dtype.startswith("int") else 0
    return np.asarray(codes - (sign << width))


def _cells(row: _Row, payload: bytes) -> npt.NDArray[Any]:
    """Return the elements of a row with a device layout as uninterpreted bytes."""
    device = math.prod(_lengths(row.text["device_shape"]))
    return np.frombuffer(payload, f"V{row.number['source_nbytes'] // device}")


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(int(length) for length in text.split(",")) if text else ()


#: The orders of axes that frameworks use for images and volumes; the first that fits applies.
_ORDERS = {4: ("NCHW", "NHWC", "HWCN"), 5: ("NCDHW", "NDHWC", "DHWCN")}


def _to_device(row: _Row, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a host array as the accelerator's memory held it, with zeros as padding."""
    name, wanted = row.text["format"], _lengths(row.text["device_shape"])
    first = "NCHW" if host.ndim == 4 else "NCDHW"
    orders = () if name in device_writer.MATRICES else _ORDERS.get(host.ndim, ())
    for order in orders:
        ordered = host.transpose([order.index(axis) for axis in first])
        with suppress(ValueError):  # too few or too many axes for this format
            device, layout = device_writer.write(ordered, name, c0=wanted[-1], groups=row.number["groups"])
            if layout.shape == wanted:
                return device
    if not orders:
        device, layout = device_writer.write(host, name, c0=wanted[-1], groups=row.number["groups"])
        if layout.shape == wanted:
            return device
    assert host.shape == wanted, f"{name} of {host.shape} is not {wanted}"
    return host


def _check_totals(rows: list[_Row], summary: dict[str, Any]) -> None:
    kinds = Counter(row.text["kind"] for row in rows if row.text["kind"] != "part")
    totals = {
        "tensor": "tensors",
        "statistics": "statistics_only",
        "overflow": "overflows",
        "file": "files",
        "quarantined": "quarantined",
    }
    assert kinds.keys() <= totals.keys()
    for kind, total in totals.items():
        assert summary[total] == kinds[kind], total


def _read(generation: zarr.Group, path: str) -> npt.NDArray[Any]:
    array = generation[path]
    assert isinstance(array, zarr.Array)
    values = np.asarray(array[...])
    logical = array.attrs.get("logical_dtype")
    return values if logical is None else values.view(getattr(ml_dtypes, str(logical)))


def _columns(generation: zarr.Group, path: str) -> dict[str, npt.NDArray[Any]]:
    fields: Any = generation[path].attrs["fields"]
    table = _read(generation, path)
    return {name: table[:, column] for column, name in enumerate(fields)}


def _as_dumped(values: npt.NDArray[Any], path: str) -> bytes:
    as_dumped = values.dtype.newbyteorder(">" if path.endswith("_big_endian") else "<")
    return values.astype(as_dumped, copy=False).tobytes()


def _check_statistics(stored: dict[str, Any], values: npt.NDArray[Any]) -> None:
    is_complex = values.dtype.kind == "c"
    wide: npt.NDArray[Any] = values.astype(np.complex128 if is_complex else np.float64)
    # Squares of the largest elements are beyond float64.
    finite = wide[np.isfinite(wide)].astype(np.clongdouble if is_complex else np.longdouble)
    counts = {"count": values.size, "nan_count": np.isnan(wide).sum(), "zero_count": (wide == 0).sum()}
    known = {"l2_norm": np.sqrt((np.abs(finite) ** 2).sum()) if finite.size else np.nan}
    if is_complex:
        counts |= {"pos_inf_count": values.size - finite.size - counts["nan_count"], "neg_inf_count": 0}
    else:
        counts |= {
            "pos_inf_count": np.isposinf(wide.real).sum(),
            "neg_inf_count": np.isneginf(wide.real).sum(),
        }
        counts |= {"negative_count": (wide < 0).sum(), "positive_count": (wide > 0).sum()}
        for name in ("min", "max", "mean", "std"):
            known[name] = getattr(finite, name)() if finite.size else np.nan
    for name, count in counts.items():
        assert stored[name] == count, name
    tolerance = 1e-6 * float(np.abs(finite).max(initial=0) or 1)
    for name, value in known.items():
        np.testing.assert_allclose(stored[name], float(value), rtol=1e-6, atol=tolerance, err_msg=name)


def _holder(generation: zarr.Group, directory: Path, path: str) -> zarr.Group:
    """Return the group that the label `array` is relative to: the root of the store for the pool."""
    if not path.startswith("pool/"):
        return generation
    assert path.split("/")[1] == directory.name, f"{directory} refers to {path}"
    return zarr.open_group(directory.parent.parent, mode="r")


def _assert_written(generation: zarr.Group, directory: Path, path: str, offset: int, size: int) -> None:
    """Fail if an inner chunk of the range was never written: zarr-python would return zeros for it."""
    holder = _holder(generation, directory, path)
    array = holder[path]
    assert isinstance(array, zarr.Array)
    assert array.shards is not None
    chunk, shard = array.chunks[0], array.shards[0]
    per_shard = shard // chunk
    for number in range(offset // chunk, (offset + size - 1) // chunk + 1):
        below = directory / Path(generation.basename) if holder is generation else directory.parent.parent
        file = below / path / "c" / str(number // per_shard)
        index = np.frombuffer(file.read_bytes()[-(16 * per_shard + 4) : -4], "<u8").reshape(-1, 2)
        assert index[number % per_shard, 0] != _MISSING, f"{file}: a chunk is missing"
