"""The root, the groups of ranks and the view are mended from what they have to be."""

from pathlib import Path

import pytest

from ingest.api import open_store
from ingest.repairing.run import mend_surroundings
from tests.damages import DAMAGES
from workers.errors import StoreFormatError


@pytest.mark.parametrize("damage", ["root missing", "root truncated", "group of a rank missing"])
def test_groups_come_back_as_they_were(store: Path, damage: str) -> None:
    objects = open_store(store).objects
    before = {key: objects.get(key) for key in ("zarr.json", "rank_0/zarr.json")}
    DAMAGES[damage](store)
    planned = mend_surroundings(objects, apply=False)
    assert planned is not None
    assert {key: objects.get(key) for key in before} != before
    done = mend_surroundings(objects, apply=True)
    assert done is not None
    assert (done.key, done.mended, done.is_whole) == (None, planned.mended, True)
    assert {key: objects.get(key) for key in before} == before


def test_a_store_of_others_is_not_mended(store: Path) -> None:
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    with pytest.raises(StoreFormatError):
        mend_surroundings(open_store(store).objects, apply=True)
