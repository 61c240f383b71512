"""What the real torch writes is read as it reads it back."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.reader.dump_store import open_store
from ingest.reader.tensor import Tensor
from tests import torch_oracle
from tests.pipeline import ingest_directly


@pytest.fixture(scope="module")
def written(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What torch wrote, in a process of its own: it loads what nobody else should."""
    assert torch is not None
    directory = tmp_path_factory.mktemp("torch")
    command = [sys.executable, "-W", "ignore", torch_oracle.__file__, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout.splitlines()[-1])


def digest(tensor: Tensor) -> tuple[list[int], str]:
    values = np.ascontiguousarray(tensor.read())
    return list(tensor.shape), hashlib.sha256(values.tobytes()).hexdigest()


def test_every_tensor_is_as_torch_reads_it(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """In the format of today (step 0), and in the one before torch 1.6 (step 1)."""
    directory, told = written
    ingest_directly(directory, tmp_path / "store", layout="odd{step}/{module}.pt")
    stored: dict[str, list[tuple[list[int], str]]] = {path: [] for path in told["files"]}
    for tensor in open_store(tmp_path / "store").tensors(rank=0, step=[0, 1]):
        stored[tensor.source].append(digest(tensor))
    expected = {
        path: sorted((tensor["shape"], tensor["sha256"]) for tensor in tensors)
        for path, tensors in told["files"].items()
    }
    assert {path: sorted(tensors) for path, tensors in stored.items()} == expected
    assert len(expected) > 30


def test_checkpoint_is_as_torch_reads_it(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    directory, told = written
    if told["checkpoint"] is None:
        pytest.skip(f"torch {told['version']} has no torch.distributed.checkpoint.save")
    ingest_directly(directory / "checkpoint", tmp_path / "store")
    stored = {tensor.op_name: digest(tensor) for tensor in open_store(tmp_path / "store").tensors(step=3)}
    assert stored == {
        name: (tensor["shape"], tensor["sha256"]) for name, tensor in told["checkpoint"].items()
    }
