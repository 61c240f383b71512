"""Ways to damage a store: each kind takes a store and damages one step, or what lies beside the steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from workers.store.record import without_checksum

STEP = "rank_0/step_1"


def flip(path: Path, at: int = -1) -> None:
    """Flip the bits of one byte; the one in the middle for -1."""
    data = bytearray(path.read_bytes())
    data[at if at >= 0 else len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def only(store: Path, pattern: str) -> Path:
    """Return the one path that a pattern names."""
    (path,) = store.glob(pattern)
    return path


def forget_checksums(leaf: Path) -> None:
    """Make a commit what earlier versions wrote: without checksums of its own, and of its tables."""
    document = json.loads(without_checksum(leaf.read_bytes()))
    document["attributes"]["dump_ingest"].pop("checksums", None)
    leaf.write_text(json.dumps(document, separators=(",", ":")))


def _flipped(pattern: str) -> Callable[[Path], None]:
    return lambda store: flip(only(store, pattern))


def _missing(pattern: str) -> Callable[[Path], None]:
    return lambda store: only(store, pattern).unlink()


def _cut(pattern: str, keep: float = 0.5) -> Callable[[Path], None]:
    def cut(store: Path) -> None:
        path = only(store, pattern)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])

    return cut


def _longer(pattern: str) -> Callable[[Path], None]:
    def append(store: Path) -> None:
        path = only(store, pattern)
        path.write_bytes(path.read_bytes() + b"overlong")

    return append


def _swapped(a: str, b: str) -> Callable[[Path], None]:
    def swap(store: Path) -> None:
        first, second = only(store, a), only(store, b)
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)

    return swap


def _without_directory(pattern: str) -> Callable[[Path], None]:
    return lambda store: shutil.rmtree(only(store, pattern))


def _edited(pattern: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(store: Path) -> None:
        path = only(store, pattern)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return edit


def _wrong_totals(store: Path) -> None:
    """Change a total in a commit as earlier versions wrote it, which has no checksum."""
    path = store / STEP / "zarr.json"
    path.write_bytes(without_checksum(path.read_bytes()).replace(b'"nan_count":0', b'"nan_count":7', 1))


def _foreign_commit(store: Path) -> None:
    shutil.copy(store / "rank_0/step_2/zarr.json", store / STEP / "zarr.json")


SHARD = f"{STEP}/*/tensors/float32/c/0"
#: By name of a kind of damage: what does it.
DAMAGES: dict[str, Callable[[Path], None]] = {
    "shard: a byte flipped": lambda store: flip(only(store, SHARD), 5),
    "shard: its index flipped": lambda store: flip(only(store, SHARD), only(store, SHARD).stat().st_size - 6),
    "shard missing": _missing(SHARD),
    "shard truncated": _cut(SHARD),
    "shard empty": _cut(SHARD, 0),
    "shard overlong": _longer(SHARD),
    "shards swapped between steps": _swapped(SHARD, "rank_0/step_2/*/tensors/float32/c/0"),
    "shards swapped between types": _swapped(SHARD, f"{STEP}/*/tensors/int32/c/0"),
    "commit truncated": _cut(f"{STEP}/zarr.json"),
    "commit empty": _cut(f"{STEP}/zarr.json", 0),
    "commit of another step": _foreign_commit,
    "commit with a changed total": _edited(f"{STEP}/zarr.json", '"raw_bytes":', '"raw_bytes":1'),
    "commit with wrong totals": _wrong_totals,
    "commit with another name of a column": _edited(f"{STEP}/zarr.json", '"min"', '"mim"'),
    "commit with another codec": _edited(f"{STEP}/zarr.json", '"name":"zstd"', '"name":"zstb"'),
    "generation missing": _without_directory(f"{STEP}/" + "[0-9a-f]" * 32),
    "labels flipped": _flipped(f"{STEP}/*/index/labels/c/0/0"),
    "numbers missing": _missing(f"{STEP}/*/index/numbers/c/0/0"),
    "shapes truncated": _cut(f"{STEP}/*/index/shape/c/0/0"),
    "digests flipped": _flipped(f"{STEP}/*/index/digest/c/0/0"),
    "digests missing": _missing(f"{STEP}/*/index/digest/c/0/0"),
    "digests of another step": _swapped(f"{STEP}/*/index/digest/c/0/0", "rank_0/step_2/*/index/digest/c/0/0"),
    "statistics flipped": _flipped(f"{STEP}/*/statistics/c/0/0"),
    "statistics missing": _missing(f"{STEP}/*/statistics/c/0/0"),
    "statistics of another step": _swapped(f"{STEP}/*/statistics/c/0/0", "rank_0/step_2/*/statistics/c/0/0"),
    "files flipped": _flipped(f"{STEP}/*/files/c/0"),
    "files missing": _missing(f"{STEP}/*/files/c/0"),
    "metadata of an array changed": _edited(f"{STEP}/*/tensors/float32/zarr.json", "little", "big"),
    "metadata of a group missing": _missing(f"{STEP}/*/index/zarr.json"),
    "findings flipped": _flipped("rank_0/step_3/*/findings/*/labels/c/0/0"),
    "findings missing": _missing("rank_0/step_3/*/findings/*/numbers/c/0/0"),
    "root missing": _missing("zarr.json"),
    "root truncated": _cut("zarr.json"),
    "group of a rank missing": _missing("rank_0/zarr.json"),
    "group of a rank truncated": _cut("rank_0/zarr.json"),
    "view: a cube flipped": lambda store: flip(min(store.glob("consolidated/max/c/*/*/*"))),
    "view: a chunk missing": lambda store: min(store.glob("consolidated/row/c/*/*/*")).unlink(),
    "view: its names missing": lambda store: min(store.glob("consolidated/name/c/*")).unlink(),
    "view: copies of commits flipped": lambda store: flip(min(store.glob("consolidated/commit/c/*/*"))),
    "view: its metadata truncated": _cut("consolidated/zarr.json"),
    "view: its metadata missing": _missing("consolidated/zarr.json"),
}
