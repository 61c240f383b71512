"""Read whole stores with zarr-python, numpy and xxhash alone: `python tests/plain_reader.py STORE...`.

Written from docs/store.md, without anything of this project; even the memory formats of accelerators are the
functions of that page. Runs in an environment without this project. Each file of each committed step is
rebuilt and compared with the dump, if the dump is there, and with the digests of the index.

Prints one JSON object for each store: how many steps, rows, payloads with a good digest, and files equal to
those of the dump; and what was wrong.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zarr

PAGE = Path(__file__).parents[1] / "docs" / "store.md"


def functions_of_the_page() -> dict[str, Any]:
    """Return what the code of the section on memory formats defines."""
    section = PAGE.read_text().partition("### The memory formats\n")[2]
    code = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(compile(code[1], str(PAGE), "exec"), names)  # noqa: S102  (a page of this repository)
    return names


to_device = functions_of_the_page()["to_device"]


class Step:
    """One committed step."""

    def __init__(self, directory: Path) -> None:
        """Open it from its commit, which has the metadata of all arrays."""
        leaf: Any = zarr.open_group(directory, mode="r")
        self.root: Any = zarr.open_group(directory.parent.parent, mode="r")
        self.record: dict[str, Any] = leaf.attrs["dump_ingest"]
        self.generation: Any = leaf[self.record["fingerprint"]]
        self.text = self._columns("index/labels")
        self.number = self._columns("index/numbers")
        self.shape = self.generation["index/shape"][...]
        self.digest = self.generation["index/digest"][...]
        self.arrays: dict[str, Any] = {}

    def _columns(self, path: str) -> dict[str, Any]:
        table = self.generation[path][...]
        return {name: table[:, at] for at, name in enumerate(self.generation[path].attrs["fields"])}

    def payload(self, row: int) -> bytes:
        """Return the stored payload of a row, in the byte order of the dump."""
        first, size = (int(self.number[name][row]) for name in ("offset", "size"))
        if not size:
            return b""
        path = str(self.text["array"][row])
        if path not in self.arrays:
            self.arrays[path] = (self.root if path.startswith("pool/") else self.generation)[path][...]
        stored = self.arrays[path][first : first + size]
        order = ">" if path.endswith("_big_endian") else "<"
        return bytes(stored.astype(stored.dtype.newbyteorder(order)).tobytes())

    def in_source(self, row: int, payload: bytes) -> bytes:
        """Return a payload as the dump file has it: in the layout of the device, or not at all for a view."""
        if not self.number["source_nbytes"][row]:
            return b""
        if self.text["layout"][row] != "host":
            return payload
        device_shape = tuple(int(length) for length in self.text["device_shape"][row].split(","))
        itemsize = int(self.number["source_nbytes"][row]) // math.prod(device_shape)
        shape = [int(length) for length in self.shape[row][: self.number["ndim"][row]]]
        host = np.frombuffer(payload, f"V{itemsize}").reshape(shape)
        groups = max(int(self.number["groups"][row]), 1)
        return bytes(to_device(host, str(self.text["format"][row]), device_shape, groups).tobytes())


def read_step(step: Step, dump: Path | None, count: Counter[str], wrong: list[str]) -> None:
    """Read every row and rebuild every file of a step."""
    files: dict[str, list[int]] = {}
    for row, (source, kind) in enumerate(zip(step.text["source"], step.text["kind"], strict=True)):
        if kind != "statistics":
            files.setdefault(str(source), []).append(row)
    for source, rows in files.items():
        content = b""
        if any(step.number["offset"][row] < 0 for row in rows):
            count["never read"] += 1
            continue
        for row in sorted(rows, key=lambda row: step.number["source_offset"][row]):
            payload = step.payload(row)
            count["rows"] += 1
            count[f"{step.text['layout'][row]} {step.text['format'][row]}"] += bool(step.text["layout"][row])
            if xxhash.xxh3_128_digest(payload) != step.digest[row].tobytes():
                wrong.append(f"{source}: digest of row {row}")
            content += step.text["lead"][row].encode("latin-1")
            content += step.in_source(row, payload) + step.text["tail"][row].encode("latin-1")
        if len(content) != step.number["source_size"][rows[0]]:
            wrong.append(f"{source}: {len(content)} bytes")
        if dump is not None:
            count["files"] += 1
            name = re.sub(rb"%(..)", lambda code: bytes([int(code[1], 16)]), source.encode())
            original = Path(step.record["source"]["root"]).joinpath(name.decode(errors="surrogateescape"))
            if original.read_bytes() != content:
                wrong.append(f"{source} differs")


def read_store(store: Path) -> dict[str, Any]:
    """Read every committed step of a store; return what there was, and what was wrong."""
    root = json.loads((store / "zarr.json").read_text())
    assert root["attributes"]["dump_ingest"]["format_version"] == 6
    count: Counter[str] = Counter()
    wrong: list[str] = []
    for pattern in ("rank_*/step_*", "rank_*/run"):
        for directory in sorted(store.glob(pattern)):
            if (directory / "zarr.json").exists():
                step = Step(directory)
                count["steps"] += 1
                count[step.record["summary"]["status"]] += 1
                root_of_dump = Path(step.record["source"]["root"])
                read_step(step, root_of_dump if root_of_dump.exists() else None, count, wrong)
    foreign = sorted({name.partition(".")[0] for name in sys.modules} & {"ingest", "workers", "ml_dtypes"})
    return {"zarr": zarr.__version__, **count, "wrong": wrong, "imported": foreign}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps(read_store(Path(argument))))
