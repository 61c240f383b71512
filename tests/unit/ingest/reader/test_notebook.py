"""What a notebook shows is small and safe, whatever a dump calls its tensors."""

import pytest

from ingest.api import DumpStore
from ingest.reader.text import MAX_NBYTES, html_table

HOSTILE = "<script>alert('x')</script>\x1b[2J\u202e" * 50


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_table_has_a_bound(rows: int) -> None:
    table = html_table(HOSTILE, [HOSTILE] * 9, ([HOSTILE] * 9 for _ in range(rows)), total=rows)
    assert len(table.encode()) <= MAX_NBYTES
    assert rows < 1000 or f"{rows - table.count('<tr>') + 1} more" in table


def test_store_steps_and_tensors_have_tables(filled: DumpStore) -> None:
    """Without reading any elements."""
    tensors, steps = filled.tensors(), filled.select()
    shown = [value._repr_html_() for value in (filled, tensors, steps, tensors[0], steps[0])]
    assert all(0 < len(page) <= MAX_NBYTES and "<td" in page for page in shown)
    assert "ranks" in shown[0]
    assert "40 tensors" in shown[1]
    assert "20 more" in shown[1]
