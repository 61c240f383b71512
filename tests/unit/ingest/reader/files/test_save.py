"""Files that numpy alone can read."""

import io
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingest.api import open_store
from ingest.reader.save import save_npy
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.errors import DumpIngestError


@pytest.mark.parametrize("fortran", [False, True])
def test_a_tensor_keeps_its_elements(made: MadeDump, store: Path, tmp_path: Path, *, fortran: bool) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    made.add(np.asfortranarray(values) if fortran else values)
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    assert save_npy(tensor, tmp_path / "x.npy") == ""
    assert np.array_equal(np.load(tmp_path / "x.npy"), values)


def test_what_numpy_does_not_have_is_widened(made: MadeDump, store: Path, tmp_path: Path) -> None:
    values = np.array([1.5, np.nan, -2], ml_dtypes.bfloat16)
    made.add(values)
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    assert save_npy(tensor, tmp_path / "x.npy") == "float32"
    assert np.array_equal(np.load(tmp_path / "x.npy"), values.astype(np.float32), equal_nan=True)


def test_a_full_disk_is_reported(made: MadeDump, store: Path) -> None:
    """Writing through a memory map, as numpy does by default, would end in SIGBUS."""
    made.add(np.zeros((1024, 1024), np.float32))
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    with pytest.raises(DumpIngestError, match="No space left"):
        save_npy(tensor, "/dev/full")


def test_a_pipe_gets_the_whole_file() -> None:
    reading, writing = os.pipe()
    save_npy(np.arange(4), f"/dev/fd/{writing}")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert np.load(io.BytesIO(pipe.read())).tolist() == [0, 1, 2, 3]
