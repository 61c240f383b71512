"""What an attacker may put into a dump or a store, and how ingest and readers deal with it.

    python -m tests.hostile DIRECTORY

Runs all cases in one process whose memory is limited, and prints the outcome of each as JSON.
"""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import ingest
from tests.damages import forget_checksums
from tests.stores import MadeDump, ingest_directly, npy_header, tensor_name
from workers.errors import DumpIngestError
from workers.store import tables
from workers.store.packed.shards import crc32c

#: The limit of the address space; libraries and threads take half of it.
LIMIT_NBYTES = 4 << 30
OUTSIDE = "outside of the dump"
_LEAF = "rank_0/step_0/zarr.json"


def _name(slot: int = 9) -> str:
    return tensor_name("Evil.op", slot=slot, time=1)


def _link(dump: MadeDump, target: str) -> None:
    (dump.directory() / _name()).symlink_to(target)


def _socket(dump: MadeDump) -> None:
    before = Path.cwd()
    os.chdir(dump.directory())
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind("s.npy")
    os.chdir(before)


def _device(dump: MadeDump) -> None:
    try:
        os.mknod(dump.directory() / _name(), 0o20666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        os.mkfifo(dump.directory() / _name())


def _many(dump: MadeDump) -> None:
    directory = dump.directory()
    for number in range(20_000):
        os.close(os.open(directory / f"{number}.npy", os.O_CREAT | os.O_WRONLY))


def _deep(dump: MadeDump) -> None:
    before = Path.cwd()
    os.chdir(dump.directory())
    for _ in range(1500):
        Path("d").mkdir()
        os.chdir("d")
    Path("x.npy").write_bytes(b"x")
    os.chdir(before)


def _sparse(dump: MadeDump) -> None:
    with (dump.directory() / _name()).open("wb") as file:
        file.write(npy_header("<f4", (1 << 38,)))
        file.truncate(1 << 20)


def _add(content: bytes, name: str | None = None) -> Callable[[MadeDump], object]:
    return lambda dump: dump.add(content, name or _name())


_PT = tensor_name("Evil.op", time=1).removesuffix(".npy") + ".pt"

#: Cases in a dump: what is added next to a good tensor, and the outcome.
DUMP_CASES: dict[str, tuple[Callable[[MadeDump], object], str]] = {
    "symbolic link to a file outside": (
        lambda dump: _link(dump, str(dump.root.parent / "secret")),
        "not followed",
    ),
    "symbolic link to itself": (lambda dump: _link(dump, _name()), "not followed"),
    "symbolic link to a directory outside": (
        lambda dump: (dump.root / "rank_0" / "Net" / "0" / "7").symlink_to(dump.root.parent),
        "not followed",
    ),
    "hard link to a file outside": (
        lambda dump: os.link(dump.root.parent / "secret", dump.directory() / "linked.txt"),
        "ingested",
    ),
    "FIFO": (lambda dump: os.mkfifo(dump.directory() / _name()), "not followed"),
    "device file": (_device, "not followed"),
    "socket": (_socket, "not followed"),
    "control characters and markup in a name": (_add(b"x", "a\x1b[2J\n<script>\r%00.npy"), "ingested"),
    "bytes in a name that are not UTF-8": (_add(b"x", os.fsdecode(b"\xff\xfe.npy")), "ingested"),
    "20,000 empty files in one directory": (_many, "quarantined"),
    "1,500 nested directories": (_deep, "ingested"),
    "npy header of a terabyte": (_sparse, "quarantined"),
    "npy header that announces 4 GB of header": (
        _add(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100),
        "quarantined",
    ),
    "npy header of 60,000 brackets": (
        _add(b"\x93NUMPY\x01\x00" + (60_000).to_bytes(2, "little") + b"(" * 60_000),
        "quarantined",
    ),
    "npy of pickled objects": (_add(npy_header("|O", (1,)) + b"cos\nsystem\n(S'true'\ntR."), "quarantined"),
    "pickle with the ending .pt": (_add(b"cos\nsystem\n(S'true'\ntR.", _PT), "ingested"),
}


def _json(change: Callable[[Any, Any], Any]) -> Callable[[Path], object]:
    def apply(store: Path) -> None:
        document = json.loads((store / _LEAF).read_text())
        change(document, document["attributes"]["dump_ingest"])
        (store / _LEAF).write_text(json.dumps(document))

    return apply


def _raw(text: bytes, path: str = _LEAF) -> Callable[[Path], object]:
    return lambda store: (store / path).write_bytes(text)


def _generation(store: Path) -> Path:
    record = json.loads((store / _LEAF).read_text())["attributes"]["dump_ingest"]
    return store / "rank_0/step_0" / str(record["fingerprint"])


def _cell(path: str, kind: str, fields: tuple[str, ...], name: str, value: Any) -> Callable[[Path], object]:
    def apply(store: Path) -> None:
        array = _generation(store) / path
        shape = json.loads((array / "zarr.json").read_text())["shape"]
        chunk = array / "c/0/0"
        table = np.array(tables.decode_table(chunk.read_bytes(), kind, tuple(shape), "here"))
        table[:, fields.index(name)] = value
        chunk.write_bytes(tables.encode_table(table, kind))
        forget_checksums(store / _LEAF)

    return apply


def _number(name: str, value: int) -> Callable[[Path], object]:
    return _cell("index/numbers", "int64", tables.NUMBERS, name, value)


def _label(name: str, value: str) -> Callable[[Path], object]:
    return _cell("index/labels", "string", tables.LABELS, name, value)


def _zstd_bomb(path: str) -> Callable[[Path], object]:
    # A frame of RLE blocks (RFC 8878): 4 bytes for 128 KiB each. Its header announces the total of 64 GiB.
    blocks = (64 << 30) // (128 << 10)
    block = (((128 << 10) << 3) | 0b010).to_bytes(3, "little") + b"\0"
    last = (((128 << 10) << 3) | 0b011).to_bytes(3, "little") + b"\0"
    frame = b"\x28\xb5\x2f\xfd\xe0" + (64 << 30).to_bytes(8, "little") + block * (blocks - 1) + last
    return lambda store: (_generation(store) / path / "c/0/0").write_bytes(frame + crc32c(frame))


def _blosc_lie(field: slice) -> Callable[[Path], object]:
    def apply(store: Path) -> None:
        shard = _generation(store) / "tensors/float32/c/0"
        data = bytearray(shard.read_bytes())
        entry = np.frombuffer(data[-20:-4], "<u8")
        start, nbytes = int(entry[0]), int(entry[1])
        data[start + field.start : start + field.stop] = (0x7FFF0000).to_bytes(4, "little")
        data[start + nbytes - 4 : start + nbytes] = crc32c(bytes(data[start : start + nbytes - 4]))
        shard.write_bytes(data)

    return apply


def _shape(rows: int) -> Callable[[Any, Any], Any]:
    def change(document: Any, record: Any) -> None:
        nodes = document["consolidated_metadata"]["metadata"]
        nodes[f"{record['fingerprint']}/index/numbers"]["shape"][0] = rows

    return change


def _array(**changes: Any) -> Callable[[Any, Any], Any]:
    def change(document: Any, record: Any) -> None:
        node = document["consolidated_metadata"]["metadata"][f"{record['fingerprint']}/tensors/float32"]
        node["shape"] = [changes.get("length", node["shape"][0])]
        node["codecs"][0]["configuration"]["chunk_shape"] = [changes["chunk"]]
        node["chunk_grid"]["configuration"]["chunk_shape"] = [changes["chunk"] * changes.get("chunks", 1)]

    return change


def _both(*parts: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda store: [part(store) for part in parts]


#: Cases in a store: how it is changed, and what a reader of it reports.
STORE_CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "metadata nested 100,000 deep": (_raw(b"[" * 100_000), "damage"),
    "metadata of a store nested 100,000 deep": (_raw(b"[" * 100_000, "zarr.json"), "refused"),
    "infinite format version": (
        _raw(b'{"attributes": {"dump_ingest": {"format_version": Infinity}}}', "zarr.json"),
        "refused",
    ),
    "totals that are not numbers": (_json(lambda _, r: r["summary"].update(tensors="<b>")), "damage"),
    "generation named ../..": (_json(lambda _, r: r.update(fingerprint="../..")), "damage"),
    "table of 64 GiB in 2 MB of zstd": (_zstd_bomb("index/numbers"), "damage"),
    "texts of 64 GiB in 2 MB of zstd": (_zstd_bomb("index/labels"), "damage"),
    "table of 2^60 rows": (_json(_shape(1 << 60)), "damage"),
    "blosc chunk that claims 2 GiB": (_blosc_lie(slice(4, 8)), "damage"),
    "blosc chunk that claims to be longer than it is": (_blosc_lie(slice(12, 16)), "damage"),
    "tensor of 2^62 elements": (_number("size", 1 << 62), "damage"),
    "tensor of 2^50 elements in an array that claims the same length": (
        _both(_json(_array(chunk=1 << 10, chunks=1 << 40, length=1 << 60)), _number("size", 1 << 50)),
        "damage",
    ),
    "chunks of length 0": (_json(_array(chunk=0)), "damage"),
    "chunks of 2^40 elements": (_json(_array(chunk=1 << 40)), "damage"),
    "negative offsets in the source": (_number("source_offset", -1 << 40), "damage"),
    "array named ../../secret": (_label("array", "../../secret"), "damage"),
    "source named ../../escaped": (_label("source", "../../escaped"), "damage"),
    "source named /tmp/escaped": (_label("source", "/tmp/escaped"), "damage"),  # noqa: S108
    "element type that is a program": (_label("dtype", "__import__('os').system('true')"), "damage"),
    "device layout with impossible axes": (
        _both(_label("layout", "device"), _label("device_shape", "9" * 400), _label("format", "NC1HWC0")),
        "damage",
    ),
}


def dump_outcome(directory: Path, put: Callable[[MadeDump], object]) -> str:
    """Ingest a dump with a good tensor and what `put` adds to it, and return the outcome for the latter."""
    directory.mkdir()
    (directory / "secret").write_text(OUTSIDE)
    dump = MadeDump(directory / "dump")
    dump.root.mkdir()
    dump.add(np.arange(6, dtype="<f4"), tensor_name(slot=0))
    put(dump)
    (summary,) = ingest_directly(dump.root, directory / "run.zarr")
    step = ingest.open_store(directory / "run.zarr").step(0, 0)
    assert summary.tensors == 1
    assert list(ingest.open_store(directory / "run.zarr").verify()) == []
    exported = step.export(directory / "out")
    for file in exported:
        assert file.path.resolve().is_relative_to(directory / "out"), file
    if summary.quarantined:
        return "quarantined"
    return "ingested" if len(exported) > 1 else "not followed"


def store_outcome(store: Path, out: Path) -> str:
    """Read everything in a store in every way, export it below `out`, and return the outcome."""
    try:
        opened = ingest.open_store(store)
    except DumpIngestError:
        return "refused"
    # Each way to read gives the damage that it reports.
    readings: tuple[Callable[[], Iterable[object]], ...] = (
        opened.verify,
        lambda: _no_damage(opened.tensors(where="nan_count >= 0")),
        lambda: [file.problem for file in opened.step(0, 0).export(out) if file.problem],
        lambda: _no_damage([tensor.read() for tensor in opened.step(0, 0).tensors()]),
        lambda: _no_damage([tensor.to_dict() for tensor in opened.step(0, 0).tensors()]),
        lambda: _no_damage(ingest.consolidate(store)),
    )
    damaged = [_reports_damage(reading) for reading in readings]  # all of them, even after the first damage
    return "damage" if any(damaged) else "read"


def _no_damage(result: object) -> tuple[object, ...]:
    """Discard what was read: this reading would have raised an error for damage."""
    del result
    return ()


def _reports_damage(reading: Callable[[], Iterable[object]]) -> bool:
    try:
        return len(list(reading())) > 0
    except DumpIngestError:
        return True


def main(directory: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_NBYTES, LIMIT_NBYTES))
    print(json.dumps({**_outcomes_of_dumps(directory), **_outcomes_of_stores(directory)}))


def _outcomes_of_dumps(directory: Path) -> dict[str, str]:
    outcomes: dict[str, str] = {}
    for number, (case, (put, _)) in enumerate(DUMP_CASES.items()):
        outcomes[case] = _outcome(partial(dump_outcome, directory / f"dump-{number}", put))
        # Not with shutil: the directories are nested deeper than Python's recursion limit.
        subprocess.run(["rm", "-rf", directory / f"dump-{number}"], check=True)
    return outcomes


def _outcomes_of_stores(directory: Path) -> dict[str, str]:
    dump = MadeDump(directory / "good")
    dump.root.mkdir()
    dump.add(np.arange(60, dtype="<f4").reshape(5, 12), tensor_name(slot=0))
    dump.add(np.arange(50, dtype="<f4"), tensor_name(slot=1))
    ingest_directly(dump.root, directory / "good.zarr")
    outcomes: dict[str, str] = {}
    for number, (case, (change, _)) in enumerate(STORE_CASES.items()):
        store = directory / f"store-{number}" / "run.zarr"
        shutil.copytree(directory / "good.zarr", store)
        change(store)
        outcomes[case] = _outcome(partial(store_outcome, store, store.parent / "a" / "b" / "out"))
        outside = [path.name for path in chain(directory.iterdir(), store.parent.iterdir())]
        assert not {"escaped", "secret"} & set(outside), case
        assert not list(store.parent.rglob("escaped")), case
    return outcomes


def _outcome(run_case: Callable[[], str]) -> str:
    """Return the outcome of a case; a case that fails must not hide the outcomes of the others."""
    try:
        return run_case()
    except Exception as exc:  # noqa: BLE001  (any error is the outcome)
        return f"{type(exc).__name__}: {exc}"[:200]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
