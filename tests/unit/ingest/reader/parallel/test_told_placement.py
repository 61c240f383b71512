"""What dumps tell about how ranks hold tensors."""

from typing import Any

import numpy as np
import pytest

from ingest.reader.parallel.told_placement import may_be_told, told_placement, told_text
from workers.arrays.sharded.placement import MeshGrid, block_placements


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"meta": {"dims": "b s h[tp]"}}, {"tp": "shard 2"}),
        ({"meta": {"dims": "b s h[tp:partial]"}}, {"tp": "partial sum"}),
        ({"meta": {"dims": "b s[cp:zigzag] h[tp] # dp:replicated"}}, None),
        ({"meta": {"dims": "b s h # tp:replicated"}}, {"tp": "replicated"}),
        ({"meta": {"dims": None}}, {}),
        ({"meta": {"dims": "t 1 (heads*d)[tp] e[moe_ep]"}}, {"tp": "shard 2", "moe_ep": "shard 3"}),
        (
            {"meta": {"dims": "t[cp:zigzag,sp] 1 h # ep:replicated dp:=attn_dp"}},
            {"cp": "zigzag 0 of each sequence", "sp": "shard 0", "ep": "replicated"},
        ),
        ({"meta": {"dims": "s[cp:natural,sp:sharded] h"}}, {"cp": "shard 0", "sp": "shard 0"}),
        ({"meta": {"dims": "h[cp:partial,tp:partial]"}}, {"cp": "partial sum", "tp": "partial sum"}),
        ({"meta": {"dims": "b s(cp,zigzag) h(tp,partial)"}}, {"cp": "zigzag 1", "tp": "partial sum"}),
        (
            {"meta": {"dims": "s(cp:zigzag,sp) (n*d)(tp)"}},
            {"cp": "zigzag 0", "sp": "shard 0", "tp": "shard 1"},
        ),
        ({"tensor": {"placements": ["Shard(0)"], "mesh_dim_names": ["tp"]}}, {"tp": "shard 0"}),
        (
            {"tensor": {"placements": ["Replicate()", "Shard(dim=1)"], "mesh_dim_names": ["dp", "tp"]}},
            {"dp": "replicated", "tp": "shard 1"},
        ),
        ({"tensor": {"placements": ["Partial(sum)"], "mesh_dim_names": ["tp"]}}, {"tp": "partial sum"}),
        (
            {"tensor": {"placements": ["_StridedShard(dim=0, sf=2)"], "mesh_dim_names": ["tp"]}},
            {"tp": "strided shard 0"},
        ),
        ({"tensor": {"placements": ["Partial(avg)"], "mesh_dim_names": ["dp"]}}, {"dp": "mean"}),
        ({"tensor": {"placements": ["Partial(max)"], "mesh_dim_names": ["dp"]}}, {}),
        ({"tensor": {"placements": ["Shard(0)"], "mesh_dim_names": None}}, {}),
        ({}, {}),
    ],
)
def test_annotations_and_dtensors(attributes: dict[str, Any], told: dict[str, str] | None) -> None:
    expected = {"cp": "zigzag 1", "tp": "shard 2", "dp": "replicated"} if told is None else told
    assert told_placement(attributes) == expected


def test_text() -> None:
    assert told_text({"dp": "replicated", "tp": "shard 1"}) == "dp: replicated, tp: shard 1"


@pytest.mark.parametrize(
    "dims",
    [
        *(
            "",
            "# tp:replicated",
            "h[tp",
            "h[tp:other]",
            "h[tp] d[tp]",
            "h[tp] # tp:replicated",
            "h # tp:partial",
        ),
        *("s[cp:zigzag+partial]", "s[tp,cp:zigzag]", "(a b)[tp]"),
    ],
)
def test_what_is_not_understood_tells_nothing(dims: str) -> None:
    """What SGLang refuses, chunks that are put into order after others are joined, and sums of chunks."""
    assert told_placement({"meta": {"dims": dims}}) == {}


def test_blocks_and_one_sequence_are_what_an_annotation_may_mean() -> None:
    grid = MeshGrid(("tp",), np.arange(2))
    ways = {way.kind: way for way in block_placements(grid, [(4,), (4,)], (8,))}
    assert may_be_told(ways["blocks 0"], {"tp": "shard 0"})
    assert may_be_told(ways["zigzag 0"], {"tp": "zigzag 0 of each sequence"})
    assert not may_be_told(ways["zigzag 0"], {"tp": "shard 0"})
    assert not may_be_told(ways["blocks 0"], {"tp": "replicated"})
