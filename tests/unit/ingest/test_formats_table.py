"""docs/formats.md says what the code does."""

from pathlib import Path

import numpy as np
import pytest

from ingest.layouts import table
from ingest.layouts.base import Layout, System
from ingest.layouts.detect import LAYOUTS, find_dump
from tests.npy_files import npy_bytes

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()


@pytest.mark.parametrize("made", table.tables(), ids=["systems", "types", "formats"])
def test_the_page_holds_the_tables_that_the_code_makes(made: str) -> None:
    """`python -m ingest.layouts.table` prints them."""
    assert made in PAGE


@pytest.mark.parametrize(
    ("layout", "system"), [(layout, system) for layout in LAYOUTS for system in layout.systems]
)
def test_each_place_in_the_table_is_found_as_that_layout(
    layout: Layout, system: System, tmp_path: Path
) -> None:
    """By the walk that `ingest` makes, among all layouts, not by the pattern alone."""
    place = tmp_path / "dump" / system.place
    place.mkdir(parents=True)
    (place / "file").write_bytes(npy_bytes(np.zeros(0, np.float32)))
    dump = find_dump(tmp_path / "dump")
    (listing,) = [one for one in dump.scan({}).listings if one.files]
    holding = max((located for located in listing.places), key=lambda located: len(located.place.path))
    assert (holding.layout.name, holding.place.path) == (layout.name, system.place)
    fields = table.match(layout, system)
    assert [file.path for file in listing.files] == [f"{system.place}/file"]
    assert listing.key.rank in {int(fields.get(name, -1)) for name in ("rank", "device", "pid")} | {0}
