"""Tables with none, one or many entries for each row of the index."""

from typing import Any

import numpy as np
import pytest

from workers.errors import DamagedStore
from workers.store.sketches.entry_table import EntryTable, is_of_rows, rows_of

TABLE = EntryTable("histograms", ("bin", "count"))


def entries(*rows: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int64).reshape(-1, 3)


def test_entries_come_back_by_row() -> None:
    parts = [entries((7, 1, 2)), TABLE.empty(), entries((2, 5, 6), (2, 3, 4))]
    joined = TABLE.joined(parts)
    assert joined.tolist() == [[2, 5, 6], [2, 3, 4], [7, 1, 2]]
    documents, chunks = TABLE.encode(joined)
    assert (list(documents), list(chunks)) == (["histograms"], ["histograms/c/0/0"])
    decoded = TABLE.decode(documents["histograms"], chunks[TABLE.chunk], "rank 0 step 1")
    assert decoded.tolist() == joined.tolist()
    own = TABLE.own(decoded)
    assert {row: part.tolist() for row, part in own.items()} == {2: [[5, 6], [3, 4]], 7: [[1, 2]]}


def test_entries_are_gathered_with_their_rows() -> None:
    parts = [np.array([[1, 2], [3, 4]]), np.array([[5, 6]])]
    assert TABLE.gathered([20, 10], [2, 1], parts).tolist() == [[20, 1, 2], [20, 3, 4], [10, 5, 6]]


def test_a_later_version_may_have_more_fields_in_another_order() -> None:
    later = EntryTable("histograms", ("count", "new", "bin"))
    documents, chunks = later.encode(np.array([[3, 20, 99, 10]]))
    assert TABLE.decode(documents["histograms"], chunks[later.chunk], "").tolist() == [[3, 10, 20]]
    with pytest.raises(DamagedStore, match="does not have the columns row, count, new, bin"):
        later.decode(TABLE.encode(entries((1, 2, 3)))[0]["histograms"], b"", "rank 0 step 1")


@pytest.mark.parametrize("damage", [None, b"", "flipped", "cut"])
def test_a_damaged_table_is_named_with_its_step(damage: bytes | str | None) -> None:
    documents, chunks = TABLE.encode(entries((1, 2, 3), (4, 5, 6)))
    chunk = chunks[TABLE.chunk]
    data = {"flipped": bytes([chunk[0] ^ 1]) + chunk[1:], "cut": chunk[:-1]}.get(str(damage), damage)
    assert not isinstance(data, str)
    with pytest.raises(DamagedStore, match="rank 0 step 1: histograms"):
        TABLE.decode(documents["histograms"], data, "rank 0 step 1")


def test_rows_and_entries_of_some_of_them() -> None:
    entries = np.array([[0, 7], [0, 8], [3, 9]])
    assert rows_of(entries) == [0, 3]
    assert is_of_rows(entries, [3]).tolist() == [False, False, True]
    assert not is_of_rows(entries, []).any()
    assert not len(is_of_rows(entries[:0], [3]))
