"""docs/formats.md says what the code does."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingest.layouts import table
from ingest.layouts.base import Layout, System
from ingest.layouts.detect import LAYOUTS, find_dump
from tests.npy_files import npy_bytes
from workers.model import StepKey

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "formats.md").read_text()
EVIDENCE = {
    "msprobe": "a.0.forward.input.0.npy",
    "mindspore_raw": "w_output_0_shape_2_Float32_DefaultFormat.bin",
}


@pytest.mark.parametrize("name", ["systems", "types", "formats"])
def test_the_page_holds_the_tables_that_the_code_makes(name: str) -> None:
    """`python -m ingest.layouts.table --write` brings them up to date."""
    assert table.tables()[name] in PAGE


def test_tables_are_written_between_their_markers_and_nothing_else_changes() -> None:
    outdated = PAGE.replace("| `mindspore` |", "| `outdated` |").replace("`float32`", "`float33`")
    assert outdated != PAGE
    assert table.with_tables(outdated) == table.with_tables(PAGE) == PAGE


def test_page_without_a_marker_is_refused() -> None:
    with pytest.raises(LookupError, match="0 places for the table types"):
        table.with_tables(PAGE.replace("<!-- table: types -->", ""))


def test_program_prints_the_tables() -> None:
    command = [sys.executable, "-m", "ingest.layouts.table"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n".join(table.tables().values()) + "\n"


@pytest.mark.parametrize(
    ("layout", "system"), [(layout, system) for layout in LAYOUTS for system in layout.systems]
)
def test_each_place_in_the_table_is_found_as_that_layout(
    layout: Layout, system: System, tmp_path: Path
) -> None:
    """By the walk that `ingest` makes, among all layouts, not by the pattern alone."""
    place = tmp_path / "dump" / system.place
    place.mkdir(parents=True)
    name = EVIDENCE.get(layout.name, "file")
    (place / name).write_bytes(npy_bytes(np.zeros(0, np.float32)))
    dump = find_dump(tmp_path / "dump")
    (listing,) = [one for one in dump.scan({}).listings if one.files]
    holding = max((located for located in listing.places), key=lambda located: len(located.place.path))
    assert (holding.layout.name, holding.place.path) == (layout.name, system.place)
    fields = table.match(layout, system)
    assert [file.path for file in listing.files] == [f"{system.place}/{name}"]
    assert listing.key.rank in {int(fields.get(name, -1)) for name in ("rank", "device", "pid")} | {0}


@pytest.mark.parametrize(
    ("place", "named", "rank", "step"),
    [
        ("worldsize4_global_rank1/20260101000000/3/graph_1/1/8", "worldsize4_global_rank1", 1, 8),
        (
            "worldsize4_global_rank1/20260101000000/3/graph_1/1/8",
            "worldsize4_global_rank1/20260101000000",
            1,
            8,
        ),
        ("20260101000000/3/Net/1/8", "20260101000000", 3, 8),
        ("20260101000000/3/Net/1/8", "20260101000000/3/Net/1", 3, 8),
        ("step8/rank1", "step8", 1, 8),
        ("step8/20260101000000/3", "step8", 3, 8),
        ("rank_1/Net/0/8", "rank_1/Net", 1, 8),
        ("rank_1/20260101000000/step_8", "rank_1/20260101000000", 1, 8),
        ("Net/device_3/iteration_8", "Net", 3, 8),
        ("Net/device_3/iteration_8", "Net/device_3", 3, 8),
        # A number is a step only for who names the directory above it.
        ("8/20260101000000/3/Net/1/5", "8", 3, 5),
        # One host's directory may be called like a rank, whatever is below.
        ("rank_0/step8/rank1", "rank_0", 1, 8),
    ],
)
def test_a_part_of_a_dump_is_taken_as_a_part(
    place: str, named: str, rank: int, step: int, tmp_path: Path
) -> None:
    """With the rank and the step that the directories above it tell."""
    (tmp_path / "dump" / place).mkdir(parents=True)
    (tmp_path / "dump" / place / "dump_tensor_data").mkdir()
    (tmp_path / "dump" / place / "dump_tensor_data" / "a.0.forward.input.0.npy").write_bytes(b"")
    (tmp_path / "dump" / place / EVIDENCE["mindspore_raw"]).write_bytes(b"")
    listings = find_dump(tmp_path / "dump" / named).scan({}).listings
    assert [listing.key for listing in listings if listing.files] == [StepKey(rank, step)]


def test_checkpoints_beside_a_dump_are_not_taken(tmp_path: Path) -> None:
    """Others name their directories so, too; what they hold may be large."""
    for other in ("checkpoints/iteration_100", "step5/rank7", "checkpoints/device_0/iteration_3"):
        (tmp_path / other).mkdir(parents=True)
        (tmp_path / other / "model.ckpt").write_bytes(b"weights")
    place = tmp_path / "rank_0" / "Net" / "0" / "8"
    place.mkdir(parents=True)
    (place / "file").write_bytes(b"")
    scan = find_dump(tmp_path).scan({})
    assert {listing.key for listing in scan.listings if listing.files} == {StepKey(0, 8)}


def test_graphs_beside_the_iterations_of_a_device_are_run_files(tmp_path: Path) -> None:
    for path in ("Net/device_3/iteration_8/" + EVIDENCE["mindspore_raw"], "Net/device_3/graphs/graph.ir"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(b"")
    listings = {listing.key: listing for listing in find_dump(tmp_path).scan({}).listings}
    assert [file.path for file in listings[StepKey(3, None)].files] == ["Net/device_3/graphs/graph.ir"]
