"""Shards of parameters are put together as the modules that gather them have them."""

import numpy as np
import pytest

from ingest.identities.operands import ShardPlace, gathered, shard_place

WHOLE = np.arange(7 * 6).reshape(7, 6)


def place(placements: list[str], *at: int) -> ShardPlace:
    told = shard_place({"tensor": {"placements": placements, "mesh_coordinate": [*at]}})
    assert told is not None
    return told


@pytest.mark.parametrize(
    ("placements", "along", "shape"),
    [
        (["Shard(0)", "Shard(1)"], (1, 0), (7, 6)),
        (["Shard(0)", "Shard(1)"], (0,), (7, 3)),
        (["Shard(0)", "Shard(0)"], (1, 0), (7, 6)),
        (["_StridedShard(0)", "Shard(0)"], (0, 1), (7, 6)),
        (["_StridedShard(0)", "Shard(0)"], (0,), (4, 6)),
        (["Replicate()", "Shard(dim=0)"], (1,), (7, 6)),
        (["Shard(0)", "Shard(1)"], (), (4, 3)),
    ],
)
def test_shards_are_gathered_along_dimensions_of_the_mesh(
    placements: list[str], along: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """Of a mesh of 2 x 2; the first shard of an axis is the longer one."""
    shards = {}
    for at in np.ndindex(2, 2):
        part = WHOLE
        outer_first = [1, 0] if placements[0].startswith("_") else [0, 1]
        for number in outer_first:
            if "Shard" in placements[number]:
                axis = int(placements[number].removesuffix(")")[-1])
                part = np.array_split(part, 2, axis)[at[number]]
        shards[place(placements, *at)] = part
    for own, held in shards.items():
        found = gathered(own, shards, along)
        assert found is not None
        value, cut = found
        np.testing.assert_array_equal(value[cut.own], held)
        if len(along) == len(own.cuts):
            np.testing.assert_array_equal(value, WHOLE)
    first = gathered(place(placements, 0, 0), shards, along)
    assert first is not None
    assert first[0].shape == first[1].shape == shape
    assert place(placements, 0, 0).kept(along) == (0,) * (len(own.cuts) - len(along))
    assert set(own.ways()) >= {along, ()}


def test_what_is_missing_or_not_told_is_not_gathered() -> None:
    own = place(["Shard(0)"], 0)
    assert gathered(own, {own: WHOLE, place(["Shard(0)"], 2): WHOLE}, (0,)) is None
    assert gathered(own, {own: WHOLE, place(["Shard(0)"], 1): WHOLE[:, :2]}, (0,)) is None
    assert shard_place({}) is None
    assert shard_place({"tensor": {"placements": ["Replicate()"], "mesh_coordinate": [0]}}) is None
    assert shard_place({"tensor": {"placements": ["Shard(0)"], "mesh_coordinate": []}}) is None
