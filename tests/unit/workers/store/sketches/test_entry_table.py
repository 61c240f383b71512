"""Tables with none, one or many entries for each row of the index."""

from typing import Any

import numpy as np
import pytest

from workers.errors import DamagedStore
from workers.store.sketches import EntryTable

TABLE = EntryTable("histograms", ("bin", "count"))


def entries(*rows: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int64).reshape(-1, 3)


def test_a_later_version_may_have_more_fields_in_another_order() -> None:
    later = EntryTable("histograms", ("count", "new", "bin"))
    documents, chunks = later.encode(np.array([[3, 20, 99, 10]]))
    assert TABLE.decode(documents, chunks, "").tolist() == [[3, 10, 20]]
    with pytest.raises(DamagedStore, match="does not have the columns row, count, new, bin"):
        later.decode(*TABLE.encode(entries((1, 2, 3))), "rank 0 step 1")


@pytest.mark.parametrize("damage", [None, b"", "flipped", "cut"])
def test_a_damaged_table_is_named_with_its_step(damage: bytes | str | None) -> None:
    documents, chunks = TABLE.encode(entries((1, 2, 3), (4, 5, 6)))
    chunk = chunks[TABLE.chunk]
    data = {"flipped": bytes([chunk[0] ^ 1]) + chunk[1:], "cut": chunk[:-1]}.get(str(damage), damage)
    assert not isinstance(data, str)
    with pytest.raises(DamagedStore, match="rank 0 step 1: histograms"):
        TABLE.decode(documents, {} if data is None else {TABLE.chunk: data}, "rank 0 step 1")
