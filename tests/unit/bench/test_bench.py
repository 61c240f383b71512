"""The benchmarks: their data, their load, and their command."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from bench import encode
from bench.__main__ import LONG_PARTS, PARTS
from bench.encode import ENCODERS, Packed, read_packed, write_packed
from bench.load import build, read_profile
from bench.parts.encoders import check
from workers.store.model import ArraySpec

# Encoders do the same work.


def test_all_encoders_make_the_same_shards(tmp_path: Path) -> None:
    spec = ArraySpec("tensors/float32", "float32", 4, big_endian=False, chunk=1000, chunks_per_shard=4)
    data = np.random.default_rng(0).integers(0, 4, 40_000, np.uint8)
    write_packed(tmp_path / "packed", [Packed(spec, (4, 30_000, 9_996), data)])
    arrays = read_packed(tmp_path / "packed")
    shards = {}
    for encoder in ENCODERS:
        assert encode.encode(encoder, arrays, tmp_path / encoder).wall_s > 0
        check(arrays, tmp_path / encoder)
        shards[encoder] = [path.read_bytes() for path in sorted((tmp_path / encoder).rglob("c/*"))]
        assert len(shards[encoder]) == 3
    assert shards["ours"] == shards["zarr-python"]


# Dumps that are built for benchmarks.


PROFILE = """\
name,descr,shape,content,zero_fraction,std_of_nonzero,same_as_previous_step
Adam.op0.0.0.*.input.0.DefaultFormat.Float32,<f4,2x3,0,0,1,1
ReLU.op1.0.0.*.output.0.DefaultFormat.Float32,<f4,2x3,1,0.5,1,0
Copy.op2.0.0.*.output.0.DefaultFormat.Float32,<f4,2x3,1,0.5,1,0
"""


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the files of a directory by operator."""
    return {path.name.partition(".")[0]: path.read_bytes() for path in directory.rglob("*.npy")}


def test_a_profile_is_rebuilt_with_its_copies(tmp_path: Path) -> None:
    (tmp_path / "profile.csv").write_text(PROFILE)
    assert [row.size for row in read_profile(tmp_path / "profile.csv")] == [6, 6, 6]
    load = build(tmp_path / "profile.csv", tmp_path / "dump", steps=2)
    first, second = (files_of(tmp_path / "dump/rank_0/TinyBert/0" / step) for step in "01")
    assert first["ReLU"] == first["Copy"] != second["ReLU"]
    assert first["Adam"] == second["Adam"]
    assert (load.files, load.nbytes, load.distinct_nbytes) == (6, 6 * 152, 4 * 152)


# The command line of the benchmarks.


@pytest.mark.parametrize("name", [*PARTS, *LONG_PARTS])
def test_each_part_measures_something(name: str) -> None:
    assert callable(import_module(f"bench.parts.{name}").measure)
