"""The statistics of one entry, and the elements of a view."""

from pathlib import Path

import numpy as np
import pytest

from workers.arrays.dtypes import from_name
from workers.arrays.statistics import FIELDS
from workers.arrays.strided import StridedView
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.dump.source import OpenFile
from workers.errors import SourceChanged
from workers.model import SourceFile
from workers.store.model import RowKind
from workers.tasks.entry_statistics import (
    EntryStatistics,
    elements_in,
    meaning,
)
from workers.tasks.model import Entry

FLOAT = from_name("float32")
VALUES = np.array([[1, 2, np.nan], [-4, 5, 6]], np.float32)


def entry(
    kind: RowKind = RowKind.TENSOR, *, problem: str = "", nbytes: int = 24, dtype: str = "float32"
) -> Entry:
    header = TensorHeader(element=from_name(dtype), shape=(2, 3), offset=0, nbytes=nbytes, problem=problem)
    return Entry(SourceFile("a.pt", 24, 0), kind, TensorName(), header)


def test_pieces_add_up_to_the_statistics_of_the_tensor() -> None:
    running = EntryStatistics(entry(), 1024)
    for piece in (VALUES.tobytes()[:8], VALUES.tobytes()[8:]):
        running.update(memoryview(piece))
    row = dict(zip(FIELDS, running.summary().statistics, strict=True))
    assert (row["count"], row["nan_count"], row["min"], row["max"]) == (6, 1, -4, 6)
    whole = EntryStatistics(entry(), 1024)
    whole.update_host(VALUES)
    np.testing.assert_allclose(whole.summary().statistics, running.summary().statistics, rtol=1e-12)


def test_equal_bytes_of_other_types_mean_something_else() -> None:
    assert meaning(entry()) != meaning(entry(dtype="int32"))
    assert meaning(entry()) != meaning(entry(RowKind.OVERFLOW))
    assert meaning(Entry(SourceFile("a.txt", 5, 0), RowKind.FILE, TensorName())) == ""


def test_elements_of_a_view_are_picked_from_its_file(tmp_path: Path) -> None:
    data = b"head" + VALUES.tobytes()
    (tmp_path / "a.pt").write_bytes(data)
    status = (tmp_path / "a.pt").stat()
    source = SourceFile("a.pt", len(data), status.st_mtime_ns)
    with OpenFile(tmp_path, source, "rank 0 step 0") as file:
        transposed = elements_in(file, 4, StridedView((4, 12)), (3, 2), FLOAT)
        assert bytes(transposed) == VALUES.T.tobytes()
        with pytest.raises(
            SourceChanged, match=r"rank 0 step 0: a\.pt: the elements of a view are not what they were"
        ):
            elements_in(file, 4, StridedView(deflated=10), (2, 3), FLOAT)
