"""A payload is taken from whatever has its digest: dump files, other ranks, earlier generations."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ingest.api import repair
from ingest.repairing.work import first_same, is_same
from tests.damages import STEP, only
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.arrays.digest import new_digest
from workers.errors import DamagedStore


@dataclass
class InMemory:
    """A payload that is at hand, or cannot be read."""

    content: bytes
    error: Exception | None = None
    origin: str = "memory"

    def read(self, start: int, stop: int) -> bytes:
        if self.error:
            raise self.error
        return self.content[start:stop]


def digest_of(content: bytes) -> bytes:
    running = new_digest()
    running.update(content)
    return running.digest()


CONTENT = bytes(range(200))


@pytest.mark.parametrize(
    "other",
    [
        InMemory(CONTENT[:-1]),  # truncated
        InMemory(CONTENT[:-1] + b"x"),
        InMemory(b""),
        InMemory(CONTENT, FileNotFoundError()),
        InMemory(CONTENT, DamagedStore("its shard is damaged")),
    ],
)
def test_the_first_with_the_same_bytes_is_taken(other: InMemory) -> None:
    digest = digest_of(CONTENT)
    assert not is_same(other, len(CONTENT), digest)
    same = InMemory(CONTENT)
    assert first_same([other, same, InMemory(CONTENT)], len(CONTENT), digest) is same
    assert first_same([other], len(CONTENT), digest) is None


def test_a_tensor_that_another_rank_has_comes_from_there(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path / "dump")
    for rank in range(2):
        dump.add(np.arange(99, dtype="<f4"), step=1, rank=rank)
    ingest_directly(dump.root, tmp_path / "run.zarr")
    shutil.rmtree(dump.root)
    shard = only(tmp_path / "run.zarr", f"{STEP}/*/tensors/float32/c/0")
    before = shard.read_bytes()
    shard.unlink()
    done = repair(tmp_path / "run.zarr", apply=True)
    assert done.is_clean
    assert [mended.origin for mended in done.repairs[0].mended] == ["rank 1 step 1"]
    assert shard.read_bytes() == before
