"""What readers make of the cubes: conditions, damage, and steps that are not complete."""

from collections.abc import Callable

import pytest

import ingest
from tests.cube_stores import assert_is_what_is_committed, assert_survey_is_right, once, put
from workers.errors import DamagedStore
from workers.store.objects import ObjectStore


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-40],
        lambda data: data.replace(b'"steps":1', b'"steps":-1', 1),
        lambda data: data.replace(b'"tensors":6', b'"tensors":99999999999', 1),
        lambda data: data.replace(b'"grid":{', b'"grid":{"more":1,', 1),
        lambda data: data.replace(b'"steps":1', b'"steps":"1"', 1),
        lambda data: data.replace(b'"rewriting":[]', b'"rewriting":[7]', 1),
        lambda data: data.replace(b'"ranks":1,', b'"ranks":Infinity,', 1),
        lambda _: b"[" * 100_000,
        lambda _: b"null",
    ],
)
def test_damaged_metadata_is_named_and_readers_do_without(
    objects: ObjectStore, change: Callable[[bytes], bytes]
) -> None:
    put(objects, 0, 1)
    once(objects)
    data = objects.get("consolidated/zarr.json")
    assert data is not None
    objects.put("consolidated/zarr.json", change(data))
    with pytest.raises(DamagedStore) as raised:
        ingest.open_store(objects.address.url).consolidated()
    assert "--rebuild" in raised.value.hint
    assert_survey_is_right(objects)
    once(objects, rebuild=True)
    assert_is_what_is_committed(objects)


@pytest.mark.usefixtures("small_grid")
def test_a_damaged_cube_is_named_and_readers_do_without(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    once(objects)
    objects.put("consolidated/max/c/0/0/0", b"nothing")
    cubes = ingest.open_store(objects.address.url).consolidated()
    with pytest.raises(DamagedStore, match="consolidated/max/c/0/0/0"):
        cubes.block(0)
    assert_survey_is_right(objects)
