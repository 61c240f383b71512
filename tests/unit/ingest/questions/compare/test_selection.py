"""What is compared, as it is typed."""

from pathlib import Path

import pytest

from ingest.questions.compare.selection import Selection, parse_selection
from workers.errors import UsageError


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("run.zarr", Selection("run.zarr")),
        ("run.zarr@1", Selection("run.zarr", 1)),
        ("run.zarr@1,3", Selection("run.zarr", 1, 3)),
        ("run.zarr@rank=1,step=3", Selection("run.zarr", 1, 3)),
        ("run.zarr@step=3", Selection("run.zarr", None, 3)),
        ("run.zarr@step=3,rank=1", Selection("run.zarr", 1, 3)),
        ("s3://user@host/run.zarr", Selection("s3://user@host/run.zarr")),
        ("s3://b/run.zarr@2", Selection("s3://b/run.zarr", 2)),
        ("s3://user@host/run@2.zarr", Selection("s3://user@host/run@2.zarr")),
        ("s3://user@host/run@2.zarr@0,1", Selection("s3://user@host/run@2.zarr", 0, 1)),
        ("@", Selection("@")),
    ],
)
def test_a_part_of_a_store_is_named_behind_an_at(text: str, selection: Selection) -> None:
    assert parse_selection(text) == selection


@pytest.mark.parametrize(
    "text", ["r@x", "r@1,2,3", "r@-1", "r@rank=1,rank=2", "r@1,rank=2", "r@", "r@99999999999999999999"]
)
def test_what_is_no_rank_and_step_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rank and step"):
        parse_selection(text)


def test_a_path_that_exists_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run@1").mkdir()
    assert parse_selection(str(tmp_path / "run@1")) == Selection(str(tmp_path / "run@1"))
