"""What somebody may put into a dump or a store who means harm, and what becomes of it.

    python -m tests.hostile DIRECTORY

Goes through all cases in one process of little memory and prints the outcome of each as JSON.
"""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import ingest
from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import DumpIngestError
from workers.store import tables
from workers.store.shards import crc32c

#: All of the address space that there is: libraries and threads take the half of it.
LIMIT_NBYTES = 4 << 30
OUTSIDE = "outside of the dump"
_LEAF = "rank_0/step_0/zarr.json"


def _name(slot: int = 9) -> str:
    return tensor_name("Evil.op", slot=slot, time=1)


def _link(made: MadeDump, target: str) -> None:
    (made.directory() / _name()).symlink_to(target)


def _socket(made: MadeDump) -> None:
    before = Path.cwd()
    os.chdir(made.directory())
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s.npy")
    os.chdir(before)


def _device(made: MadeDump) -> None:
    try:
        os.mknod(made.directory() / _name(), 0o20666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        os.mkfifo(made.directory() / _name())


def _many(made: MadeDump) -> None:
    directory = made.directory()
    for number in range(20_000):
        os.close(os.open(directory / f"{number}.npy", os.O_CREAT | os.O_WRONLY))


def _deep(made: MadeDump) -> None:
    before = Path.cwd()
    os.chdir(made.directory())
    for _ in range(1500):
        Path("d").mkdir()
        os.chdir("d")
    Path("x.npy").write_bytes(b"x")
    os.chdir(before)


def _sparse(made: MadeDump) -> None:
    with (made.directory() / _name()).open("wb") as file:
        file.write(npy_header("<f4", (1 << 38,)))
        file.truncate(1 << 20)


def _add(content: bytes, name: str | None = None) -> Callable[[MadeDump], object]:
    return lambda made: made.add(content, name or _name())


_PT = tensor_name("Evil.op", time=1).removesuffix(".npy") + ".pt"

#: In a dump: what is put there beside a good tensor, and what becomes of it.
DUMP_CASES: dict[str, tuple[Callable[[MadeDump], object], str]] = {
    "symbolic link to a file outside": (
        lambda made: _link(made, str(made.root.parent / "secret")),
        "not followed",
    ),
    "symbolic link to itself": (lambda made: _link(made, _name()), "not followed"),
    "symbolic link to a directory outside": (
        lambda made: (made.root / "rank_0" / "Net" / "0" / "7").symlink_to(made.root.parent),
        "not followed",
    ),
    "hard link to a file outside": (
        lambda made: os.link(made.root.parent / "secret", made.directory() / "linked.txt"),
        "taken",
    ),
    "FIFO": (lambda made: os.mkfifo(made.directory() / _name()), "not followed"),
    "device file": (_device, "not followed"),
    "socket": (_socket, "not followed"),
    "control characters and markup in a name": (_add(b"x", "a\x1b[2J\n<script>\r%00.npy"), "taken"),
    "bytes in a name that are not UTF-8": (_add(b"x", os.fsdecode(b"\xff\xfe.npy")), "taken"),
    "20,000 empty files in one directory": (_many, "quarantined"),
    "1,500 nested directories": (_deep, "taken"),
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
    "pickle with the ending .pt": (_add(b"cos\nsystem\n(S'true'\ntR.", _PT), "taken"),
}


def _json(change: Callable[[Any, Any], Any], path: str = _LEAF) -> Callable[[Path], object]:
    def apply(store: Path) -> None:
        document = json.loads((store / path).read_text())
        change(document, document["attributes"]["dump_ingest"])
        (store / path).write_text(json.dumps(document))

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

    return apply


def _number(name: str, value: int) -> Callable[[Path], object]:
    return _cell("index/numbers", "int64", tables.NUMBERS, name, value)


def _label(name: str, value: str) -> Callable[[Path], object]:
    return _cell("index/labels", "string", tables.LABELS, name, value)


def _zstd_bomb(path: str) -> Callable[[Path], object]:
    # A frame of RLE blocks (RFC 8878): 4 bytes for 128 KiB each, 64 GiB in all. It says so itself.
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


#: In a store: what is done to it, and what becomes of whoever reads it.
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
    """Take a dump that something was put into; say what became of that."""
    directory.mkdir()
    (directory / "secret").write_text(OUTSIDE)
    made = MadeDump(directory / "dump")
    made.root.mkdir()
    made.add(np.arange(6, dtype="<f4"), tensor_name(slot=0))
    put(made)
    (taken,) = ingest_directly(made.root, directory / "run.zarr")
    step = ingest.open_store(directory / "run.zarr").step(0, 0)
    assert taken.tensors == 1
    assert list(ingest.open_store(directory / "run.zarr").verify()) == []
    exported = step.export(directory / "out")
    for one in exported:
        assert one.path.resolve().is_relative_to(directory / "out"), one
    if taken.quarantined:
        return "quarantined"
    return "taken" if len(exported) > 1 else "not followed"


def store_outcome(store: Path, out: Path) -> str:
    """Read all of a store in every way; say how that ends."""
    try:
        opened = ingest.open_store(store)
    except DumpIngestError:
        return "refused"
    ends: list[str] = []

    def attempt(question: Callable[[], Any]) -> None:
        try:
            ends.extend(str(one) for one in question() or ())
        except DumpIngestError as exc:
            ends.append(exc.message)

    attempt(lambda: [one.reason for one in opened.verify()])
    attempt(lambda: opened.tensors(where="nan_count >= 0") and [])
    attempt(lambda: [one.problem for one in opened.step(0, 0).export(out) if one.problem])
    attempt(lambda: [one.read() for one in opened.step(0, 0).tensors()] and [])
    attempt(lambda: [one.to_dict() for one in opened.step(0, 0).tensors()] and [])
    attempt(lambda: ingest.consolidate(store) and [])
    return "damage" if ends else "read"


def main(directory: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_NBYTES, LIMIT_NBYTES))
    outcomes: dict[str, str] = {}
    for number, (case, (put, _)) in enumerate(DUMP_CASES.items()):
        try:
            outcomes[case] = dump_outcome(directory / f"dump-{number}", put)
        except Exception as exc:  # noqa: BLE001  (the other cases are to be seen, too)
            outcomes[case] = f"{type(exc).__name__}: {exc}"[:200]
        # Not by Python, whose recursion is not as deep as the directories.
        subprocess.run(["rm", "-rf", directory / f"dump-{number}"], check=True)
    made = MadeDump(directory / "good")
    made.root.mkdir()
    made.add(np.arange(60, dtype="<f4").reshape(5, 12), tensor_name(slot=0))
    made.add(np.arange(50, dtype="<f4"), tensor_name(slot=1))
    ingest_directly(made.root, directory / "good.zarr")
    for number, (case, (change, _)) in enumerate(STORE_CASES.items()):
        store = directory / f"store-{number}" / "run.zarr"
        shutil.copytree(directory / "good.zarr", store)
        change(store)
        try:
            outcomes[case] = store_outcome(store, store.parent / "a" / "b" / "out")
        except Exception as exc:  # noqa: BLE001
            outcomes[case] = f"{type(exc).__name__}: {exc}"[:200]
        outside = [path.name for path in chain(directory.iterdir(), store.parent.iterdir())]
        assert not {"escaped", "secret"} & set(outside), case
        assert not list(store.parent.rglob("escaped")), case
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
