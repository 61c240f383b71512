"""Dumps that the tools of the PyTorch world wrote, and what torch itself read back from them.

`truth.json` beside each dump lists for every file the tensors that `torch.load` found in it: the keys that
lead to each, type, shape, and SHA-256 of its bytes in C order. `oracle.json` says where a NaN was born.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingest.reader.dump_store import DumpStore
from ingest.reader.tensor import Tensor

#: What torch reads as one tensor, and consists of several here.
COMPOSITE_NAMES = (
    "nested_tensor",
    "quantized_per_channel",
    "quantized_per_tensor",
    "sparse_coo",
    "sparse_csr",
)
COMPOSITE = frozenset(f"dump/odd/{name}.pt" for name in COMPOSITE_NAMES)
#: A tensor without elements: it has a type and a shape, and no row.
META = "meta_device"
LAYOUTS = {
    "torch-save-tree": "rank{rank}/step{step}/{module}.{io}.{slot}.pt",
    "fsdp2-ddp": "{net:ddp|fsdp2}/rank{rank}/step{step}/{io:grad}.{module}.pt",
}
#: A tree with one file for each speciality of torch.save.
ODD_LAYOUT = "odd{step}/{module}.pt"


@dataclass(frozen=True)
class Difference:
    """A file that was not read as torch reads it."""

    source: str
    what: str


def truth(root: Path) -> dict[str, dict[str, Any]]:
    """Return what torch read from each file, by path."""
    files: dict[str, dict[str, Any]] = json.loads((root / "truth.json").read_text())["files"]
    return files


def differences(told: Mapping[str, Mapping[str, Any]], prefix: str, store: DumpStore) -> Iterator[Difference]:
    """Compare a store with what torch read.

    Args:
        told: what torch read from each file, by path.
        prefix: what the paths begin with, and those in the store do not.
        store: the store.
    """
    stored: dict[str, list[Tensor]] = {}
    for tensor in store.tensors():
        stored.setdefault(tensor.source, []).append(tensor)
    for path, file in told.items():
        name = path.rpartition("/")[2].partition(".")[0]
        if name in COMPOSITE_NAMES or name == META or "load_error" in file:
            continue
        found = stored.get(path.removeprefix(prefix), [])
        expected = sorted((tuple(tensor["shape"]), tensor["sha256"]) for tensor in file["tensors"])
        if expected != sorted((tensor.shape, _digest(tensor)) for tensor in found):
            yield Difference(path, f"{len(found)} tensors, torch has {len(expected)}")


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor.read()).tobytes()).hexdigest()
