"""A second opinion on a store: zarr-python, numpy and xxhash, and nothing of ours but the name of bfloat16.

Knows of the store only what its documentation says: the commit is the `zarr.json` of a leaf, the index has a
row for each source file, and a payload is a range of a packed array.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import fsspec
import numpy as np
import numpy.typing as npt
import xxhash
import zarr

from tests.servers.ceph import S3Bucket
from workers.store.zarr_dtypes import register

register()  # zarr-python 3.1 does not load it by itself

#: An inner chunk that was never written, in the index of a shard.
_MISSING = 2**64 - 1


@dataclass(frozen=True, slots=True)
class File:
    """One source file as the store has it."""

    source: str
    kind: str
    problem: str
    content: bytes
    """Header and payload."""


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
    """Read everything that is committed. Raise AssertionError for whatever is missing or wrong."""
    found = sorted([*store.glob("rank_*/step_*/zarr.json"), *store.glob("rank_*/run/zarr.json")])
    return [read_leaf(path.parent) for path in found]


def read_leaf(directory: Path) -> Leaf:
    """Read one committed step with every byte in it."""
    group = zarr.open_group(directory, mode="r")
    record: Any = group.attrs["dump_ingest"]
    generation = group[record["fingerprint"]]
    assert isinstance(generation, zarr.Group)
    rank = int(directory.parent.name.removeprefix("rank_"))
    step = None if directory.name == "run" else int(directory.name.removeprefix("step_"))
    assert (record["rank"], record["step"]) == (rank, step)
    return Leaf(rank, step, record, {file.source: file for file in _files(generation, directory)})


def check(store: Path, dump: Path, *, partial: frozenset[str] = frozenset()) -> list[Leaf]:
    """Hold a store against the dump it was made from: every file there, once, byte for byte.

    `partial` names the files that may be quarantined; any other must be what it claims to be.
    """
    found = leaves(store)
    stored: dict[str, File] = {}
    for leaf in found:
        assert not leaf.files.keys() & stored.keys(), "in two steps"
        stored |= leaf.files
        bad = {file.source for file in leaf.files.values() if file.kind == "quarantined"}
        assert bad <= partial, f"quarantined: {bad - partial}"
        assert leaf.status == ("partial" if bad else "complete")
    originals = {str(path.relative_to(dump)): path for path in dump.rglob("*") if path.is_file()}
    assert stored.keys() == originals.keys()
    for source, path in originals.items():
        assert stored[source].content == path.read_bytes(), f"{source} differs"
    return found


def download(bucket: S3Bucket, into: Path) -> Path:
    """Copy every object of a store in a bucket into a directory, and return that."""
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
    # A listing takes its time: a commit that comes meanwhile is left out, for what it needs may be left out.
    before = set(files.find(base, refresh=True))
    found = [n for n in files.find(base, refresh=True) if n in before or not n.endswith("/zarr.json")]
    contents = files.cat_ranges(found, None, None) if found else []
    return {name.removeprefix(f"{base}/"): data for name, data in zip(found, contents, strict=True)}


def versions(store: S3Bucket | Path) -> dict[str, tuple[Any, ...]]:
    """Return what changes when an object is written again, even with the same bytes, by its key."""
    if isinstance(store, Path):
        stats = {str(p.relative_to(store)): p.stat() for p in store.rglob("*") if p.is_file()}
        return {key: (stat.st_ino, stat.st_mtime_ns) for key, stat in stats.items()}
    files = fsspec.filesystem("s3", **store.storage_options)
    found = files.find(store.url, detail=True, refresh=True)
    return {name: (info["ETag"], info["LastModified"]) for name, info in found.items()}


class Reader:
    """Reads a store over and over while others write it, as long as the `with` block lasts.

    Raises at the end what it has met: a commit whose data is missing or wrong.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._error: BaseException | None = None
        self.seen: dict[Path, bytes] = {}
        """The commits that were read, every byte of them, by leaf."""

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
                for path in [
                    *self._store.glob("rank_*/step_*/zarr.json"),
                    *self._store.glob("rank_*/run/zarr.json"),
                ]:
                    commit = path.read_bytes()
                    if self.seen.get(path.parent) != commit:
                        read_leaf(path.parent)
                        self.seen[path.parent] = commit
        except BaseException as exc:  # noqa: BLE001  (raised again where the block ends)
            self._error = exc


def _files(generation: zarr.Group, directory: Path) -> Iterator[File]:
    labels = _columns(generation, "index/labels")
    numbers = _columns(generation, "index/numbers")
    digests = _read(generation, "index/digest")
    statistics = _columns(generation, "statistics")
    packed: dict[str, npt.NDArray[Any]] = {}
    for row in range(len(digests)):
        path, offset, size = labels["array"][row], numbers["offset"][row], numbers["size"][row]
        payload = b""
        if size:
            assert offset >= 0, f"{labels['source'][row]} has no bytes"
            if path not in packed:
                packed[path] = _read(generation, path)
            values = packed[path][offset : offset + size]
            assert len(values) == size, f"{path} is too short"
            _assert_written(generation, directory, path, offset, size)
            payload = _as_dumped(values, path)
            if labels["kind"][row] == "tensor" and not path.endswith("/bytes"):
                _check_statistics({name: column[row] for name, column in statistics.items()}, values)
        assert len(payload) == numbers["nbytes"][row]
        assert xxhash.xxh3_128_digest(payload) == digests[row].tobytes(), labels["source"][row]
        yield File(
            str(labels["source"][row]),
            str(labels["kind"][row]),
            str(labels["problem"][row]),
            str(labels["header"][row]).encode("latin-1") + payload,
        )


def _read(generation: zarr.Group, path: str) -> npt.NDArray[Any]:
    array = generation[path]
    assert isinstance(array, zarr.Array)
    return np.asarray(array[...])


def _columns(generation: zarr.Group, path: str) -> dict[str, npt.NDArray[Any]]:
    fields: Any = generation[path].attrs["fields"]
    table = _read(generation, path)
    return {name: table[:, column] for column, name in enumerate(fields)}


def _as_dumped(values: npt.NDArray[Any], path: str) -> bytes:
    as_dumped = values.dtype.newbyteorder(">" if path.endswith("_big_endian") else "<")
    return values.astype(as_dumped, copy=False).tobytes()


def _check_statistics(stored: dict[str, Any], values: npt.NDArray[Any]) -> None:
    assert stored["count"] == values.size
    if values.dtype.kind == "c":
        return
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    assert stored["nan_count"] == np.isnan(wide).sum()
    assert stored["pos_inf_count"] == np.isposinf(wide).sum()
    assert stored["neg_inf_count"] == np.isneginf(wide).sum()
    assert stored["zero_count"] == (wide == 0).sum()
    expected = [finite.min(), finite.max(), finite.mean(), finite.std()] if finite.size else [np.nan] * 4
    found = [stored[name] for name in ("min", "max", "mean", "std")]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * (np.abs(finite).max(initial=0) or 1))


def _assert_written(generation: zarr.Group, directory: Path, path: str, offset: int, size: int) -> None:
    """Fail where an inner chunk was never written: zarr-python would fill in zeros."""
    array = generation[path]
    assert isinstance(array, zarr.Array)
    assert array.shards is not None
    chunk, shard = array.chunks[0], array.shards[0]
    per_shard = shard // chunk
    for number in range(offset // chunk, (offset + size - 1) // chunk + 1):
        file = directory / Path(generation.basename) / path / "c" / str(number // per_shard)
        index = np.frombuffer(file.read_bytes()[-(16 * per_shard + 4) : -4], "<u8").reshape(-1, 2)
        assert index[number % per_shard, 0] != _MISSING, f"{file}: a chunk is missing"
