"""docs/formats.md and docs/rules.md say what the code does."""

from pathlib import Path

import numpy as np
import pytest

from docs import tables
from ingest.layouts.base import MESH_FIELDS, Layout, System
from ingest.layouts.detect import LAYOUTS, find_dump
from tests.npy_files import npy_bytes
from workers.rules.ready import READY

EVIDENCE = {
    "msprobe": "a.0.forward.input.0.npy",
    "msprobe_saved": "debug.json",
    "vllm": "module_calls.txt",
    "mindspore_raw": "w_output_0_shape_2_Float32_DefaultFormat.bin",
    "hugging_face": "trainer_state.json",
    "olmo": "model.pt",
}
CONTENT = {
    "transformer_engine_statistics": b"2026-01-01 00:00:00,000 - INFO - a_weight_max \t "
    b"iteration=000008 \t value=1\n",
    "torchtitan_numerics": b"Total captured activations: 0\n",
    "debug_mode": b'{"format": "torch.utils._debug_mode.DebugMode.logs", "version": 1, "logs": []}',
}


@pytest.mark.parametrize("page", ["formats.md", "rules.md"])
def test_the_page_holds_the_tables_that_the_code_makes(page: str) -> None:
    """`python docs/tables.py --write` brings them up to date."""
    assert tables.filled(page) == (tables.DOCS / page).read_text("utf-8")


def test_the_built_in_rules_as_values_are_those_of_the_file() -> None:
    assert tables.rules_as_values() == READY.read_text("utf-8")


@pytest.mark.parametrize(
    ("layout", "system"), [(layout, system) for layout in LAYOUTS for system in layout.systems]
)
def test_each_place_in_the_table_is_found_as_that_layout(
    layout: Layout, system: System, tmp_path: Path
) -> None:
    """By the walk that `ingest` makes, among all layouts, not by the pattern alone."""
    is_file = tables.is_of_file(layout, system)
    directory, _, file_name = system.place.rpartition("/")
    name = file_name if is_file else EVIDENCE.get(layout.name, "file")
    path = f"{directory}/{name}".lstrip("/") if is_file else f"{system.place}/{name}"
    (tmp_path / "dump" / path).parent.mkdir(parents=True)
    content = CONTENT.get(layout.name) or npy_bytes(np.zeros(0, np.float32))
    (tmp_path / "dump" / path).write_bytes(content)
    dump = find_dump(tmp_path / "dump")
    (listing,) = [listing for listing in dump.scan({}).listings if listing.files and listing.places]
    holding = max(listing.places, key=lambda place: len(place.path))
    place = directory if is_file else system.place
    assert (holding.layout.name, holding.directory) == (layout.name, place)
    fields = tables.match(layout, system)
    assert [file.path for file in listing.files] == [path]
    numbers = {int(fields.get(name, -1)) for name in ("rank", "device", "pid", *MESH_FIELDS)}
    assert listing.key.rank in numbers | {0}
