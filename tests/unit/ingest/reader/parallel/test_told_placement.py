"""What dumps tell about how ranks hold tensors."""

from typing import Any

import pytest

from ingest.reader.parallel.told_placement import told_placement, told_text


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"meta": {"dims": "b s h[tp]"}}, {"tp": "shard 2"}),
        ({"meta": {"dims": "b s h[tp:partial]"}}, {"tp": "partial sum"}),
        ({"meta": {"dims": "b s[cp:zigzag] h[tp] # dp:replicated"}}, None),
        ({"meta": {"dims": "b s h # tp:replicated"}}, {"tp": "replicated"}),
        ({"meta": {"dims": None}}, {}),
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
