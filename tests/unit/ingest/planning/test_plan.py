"""The plan: every payload has one place, and copies meet in one task."""

import math
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.planning.plan import fingerprint
from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import SMALL_GRID, plan_all
from workers.model import SourceFile
from workers.store.model import Grid, RowKind
from workers.tasks.model import StepPlan

files = st.lists(
    st.tuples(
        st.sampled_from(["<f4", "<i8", "|u1", "<U3", "<E2", ""]), st.integers(0, 60), st.integers(0, 2)
    ),
    min_size=1,
    max_size=25,
)


def planned(root: Path, drawn: list[tuple[str, int, int]]) -> StepPlan:
    dump = MadeDump(root / "dump")
    for slot, (descr, size, seed) in enumerate(drawn):
        if descr:
            itemsize = 2 if descr == "<E2" else np.dtype(descr).itemsize
            content = npy_header(descr, (size,)) + np.random.default_rng(seed).bytes(size * itemsize)
        else:
            content = bytes(size)
        dump.add(content, tensor_name(slot=slot, time=slot) if descr else f"file-{slot}")
    (plan,) = plan_all(dump.root, root / "run.zarr", SMALL_GRID)
    return plan


@settings(max_examples=30)
@given(files)
def test_every_row_has_one_place_that_is_its_own(drawn: list[tuple[str, int, int]]) -> None:
    """No shard is ever written by two tasks, and none is too small for what may go into it."""
    with tempfile.TemporaryDirectory() as directory:
        plan = planned(Path(directory), drawn)
    rows = [row for job in plan.jobs for segment in job.segments for row in segment.rows]
    assert sorted(rows) == list(range(len(drawn)))
    owners: dict[tuple[str, int], int] = {}
    for job in plan.jobs:
        assert list(job.entries) == [row for segment in job.segments for row in segment.rows]
        for segment in job.segments:
            entries = [job.entries[row] for row in segment.rows]
            assert {entry.array for entry in entries} == {segment.array.path}
            shards = segment.array.shards_for(sum(entry.nbytes for entry in entries))
            for shard in range(segment.first_shard, segment.first_shard + shards):
                assert owners.setdefault((segment.array.path, shard), job.number) == job.number
            assert segment.array.chunk_nbytes <= max(SMALL_GRID.chunk_nbytes, segment.array.itemsize)
            assert segment.array.shard_nbytes <= max(SMALL_GRID.shard_nbytes, segment.array.chunk_nbytes)


@settings(max_examples=30)
@given(files)
def test_copies_meet_in_one_task(drawn: list[tuple[str, int, int]]) -> None:
    """Otherwise they would be stored twice."""
    with tempfile.TemporaryDirectory() as directory:
        plan = planned(Path(directory), drawn)
    job_of = {row: job.number for job in plan.jobs for row in job.entries}
    jobs: dict[tuple[str, int, int], set[int]] = {}
    for row, entry in enumerate(plan.entries):
        if entry.kind is RowKind.TENSOR:
            jobs.setdefault(drawn[entry.name.slot], set()).add(job_of[row])
    assert {len(numbers) for numbers in jobs.values()} <= {1}


def test_jobs_are_as_few_and_as_equal_as_their_size_allows(made: MadeDump, store: Path) -> None:
    for slot in range(64):
        made.add(np.full(1000, slot, np.uint8), tensor_name(slot=slot))
    (plan,) = plan_all(made.root, store, Grid(chunk_nbytes=100, shard_nbytes=1000, job_nbytes=10_000))
    sizes = [job.nbytes for job in plan.jobs]
    assert len(sizes) == math.ceil(sum(sizes) / 10_000)
    assert max(sizes) - min(sizes) <= 2000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"no npy file at all",
        npy_header("|O", (1,)) + bytes(8),
        npy_header("<f4", (5,)) + bytes(19),
        npy_header("<f4", (5,)) + bytes(21),
        npy_header("<f4", (-5,)),
        npy_header("<f8", (2**60,)),
        npy_header("<f4", (2,)),
        npy_header("<q9", (2,)) + bytes(18),
    ],
)
def test_what_claims_to_be_a_tensor_and_is_not_is_quarantined(
    content: bytes, made: MadeDump, store: Path
) -> None:
    path = made.add(content)
    (plan,) = plan_all(made.root, store)
    (entry,) = plan.entries
    assert (entry.kind, entry.header, entry.array) == (RowKind.QUARANTINED, None, "files")
    assert entry.problem
    assert entry.nbytes == path.stat().st_size


@pytest.mark.parametrize("name", ["weights.npy", "Conv2D.op.npy", "\udcff.npy"])
def test_tensor_of_an_unknown_name_is_kept_as_a_file(name: str, made: MadeDump, store: Path) -> None:
    made.add(np.zeros(3), name)
    (plan,) = plan_all(made.root, store)
    (entry,) = plan.entries
    assert (entry.kind, entry.header) == (RowKind.FILE, None)
    assert "not understood" in entry.problem


def test_fingerprint_depends_on_everything_that_changes_the_store() -> None:
    file = SourceFile("a", 1, 2)
    base = ([file], "mindspore", Grid())
    others = [
        ([SourceFile("b", 1, 2)], "mindspore", Grid()),
        ([SourceFile("a", 2, 2)], "mindspore", Grid()),
        ([SourceFile("a", 1, 3)], "mindspore", Grid()),
        ([file, SourceFile("b", 1, 2)], "mindspore", Grid()),
        ([file], "other", Grid()),
        ([file], "mindspore", Grid(chunk_nbytes=1)),
        ([], "mindspore", Grid()),
    ]
    names = {fingerprint(*base), *(fingerprint(*other) for other in others)}
    assert len(names) == len(others) + 1
    # Whether the owner may write it says nothing of what is in it.
    assert fingerprint([SourceFile("a", 1, 2, writable=False)], "mindspore", Grid()) == fingerprint(*base)
    assert fingerprint([SourceFile(os.fsdecode(b"\xff\n"), 1, 2)], "mindspore", Grid())
