"""From a directory that a user names to the dump in it."""

import os
from pathlib import Path

import pytest

from ingest.layouts.detect import find_dump
from tests.npy_files import MadeDump
from tests.pipeline import listings
from workers.errors import AccessDenied, UsageError
from workers.model import StepKey


def test_directory_of_another_user_is_a_matter_of_permissions(
    made: MadeDump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root nothing is denied, so the refusal is made up."""
    made.add(b"", step=0)
    made.add(b"", step=1)
    scandir = os.scandir

    def refuse(path: str | Path) -> object:
        if str(path).endswith("/1"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    found = listings(made.root)
    assert not found[StepKey(0, 0)].problems
    (problem,) = found[StepKey(0, 1)].problems
    assert problem.denied
    assert "setfacl" in problem.hint
    monkeypatch.setattr("os.scandir", lambda _: refuse("/1"))
    with pytest.raises(AccessDenied):
        find_dump(made.root)


def test_dump_is_found_below_and_at_a_rank(made: MadeDump, tmp_path: Path) -> None:
    made.add(b"", rank=0)
    made.add(b"", rank=3)
    assert find_dump(tmp_path).root == made.root
    assert {key.rank for key in listings(made.root / "rank_3")} == {3}


def test_a_store_is_no_dump(made: MadeDump, tmp_path: Path) -> None:
    made.add(b"", rank=0)
    (made.root / "zarr.json").write_text("{}")
    with pytest.raises(UsageError, match="is a store"):
        find_dump(made.root)
    (tmp_path / "job" / "rank_0" / "Net" / "0" / "1").mkdir(parents=True)
    assert find_dump(tmp_path).root == tmp_path / "job"


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
    (tmp_path / "dump" / place / "w_output_0_shape_2_Float32_DefaultFormat.bin").write_bytes(b"")
    listings = find_dump(tmp_path / "dump" / named).scan({}).listings
    assert [listing.key for listing in listings if listing.files] == [StepKey(rank, step)]


def test_checkpoints_are_found_beside_a_directory_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `lost+found`. Whoever waits for a dump is told of it: the dump may be in there."""
    (tmp_path / "checkpoint-8").mkdir()
    (tmp_path / "checkpoint-8" / "trainer_state.json").write_text("{}")
    (tmp_path / "lost+found").mkdir()
    scandir = os.scandir

    def refuse(path: str | Path) -> object:
        if str(path).endswith("lost+found"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    assert find_dump(tmp_path).root == tmp_path
    with pytest.raises(AccessDenied):
        find_dump(tmp_path, with_checkpoints=False)
