"""A dump whose configuration asks for what a test chooses."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ingest
from tests.stores import DumpLibrary, ingest_and_open

#: So few operators that a test may ingest them for itself.
OPERATORS = ("Log", "Neg", "Sigmoid")


def asked_dump(dumps: DumpLibrary, root: Path, steps: Iterable[int] = (2,)) -> Path:
    """Copy three operators of two ranks, with a graph and a configuration that a test may change, to `root`.

    A NaN is born in step 2 of rank 1.
    """
    whole = dumps["nan-log-2rank"] / "dump"
    for rank in (0, 1):
        for part in (".dump_metadata", "execution_order"):
            if (whole / f"rank_{rank}" / part).exists():
                shutil.copytree(whole / f"rank_{rank}" / part, root / f"rank_{rank}" / part)
        for step in steps:
            target = root / f"rank_{rank}/Mlp/0/{step}"
            target.mkdir(parents=True)
            for operator in OPERATORS:
                for path in (whole / f"rank_{rank}/Mlp/0/{step}").glob(f"{operator}.*"):
                    shutil.copy(path, target)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root


def store_of(
    dump: Path, store: Path, *, device: str = "CPU", e2e: dict[str, Any] | None = None, **changes: Any
) -> ingest.DumpStore:
    """Ingest the dump as if it had been made with another configuration."""
    metadata = dump / "rank_0/.dump_metadata"
    content = json.loads((metadata / "data_dump.json").read_text())
    content["common_dump_settings"] |= changes
    content["e2e_dump_settings"] |= e2e or {}
    (metadata / "data_dump.json").write_text(json.dumps(content))
    (metadata / "config.json").write_text(json.dumps({"device_target": device, "ms_version": "2.10.0"}))
    return ingest_and_open(dump, store)
