"""Encoders do the same work."""

from pathlib import Path

import numpy as np

from bench import encode
from bench.encode import ENCODERS, Packed, read_packed, write_packed
from bench.parts.encoders import check
from workers.store.model import ArraySpec


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
