"""From the files of a step to the tasks that take them."""

import errno
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.layouts.base import Listing
from ingest.layouts.detect import find_dump
from ingest.planning import pooling
from ingest.planning.inspection import HEAD_BYTES, Inspected, inspect
from ingest.planning.plan import PlannedRow, fingerprint, plan_rows
from ingest.planning.pooling import (
    PoolGroup,
    Shared,
    SharedTensor,
    pool_groups,
    shared_in_step,
    shared_tensors,
)
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, npy_bytes, npy_header, plan_all, tensor_name
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.errors import SourceChanged
from workers.model import MIB, SourceFile, StepKey
from workers.rules.schema import load_rules
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Grid, RowKind
from workers.tasks.model import Entry, StepPlan

# The plan: every payload has one place, and copies meet in one task.


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


# What the first bytes of the files of a step say, and which errors stop a step or only one of its files.


RECORD = {"AI Core": {"model_id": 1, "stream_id": 2, "task_id": 3, "status": 8}}


def listing_of(made: MadeDump) -> Listing:
    listings = {listing.key: listing for listing in find_dump(made.root).scan({}).listings}
    return listings[StepKey(0, 0)]


def inspected(
    made: MadeDump, *, unreadable: set[str] | None = None, poison: Mapping[SourceFile, bool] | None = None
) -> Inspected:
    listing = listing_of(made)
    description = find_dump(made.root).describe(listing)
    return inspect(made.root, listing, description, unreadable or set(), poison or {})


def test_header_and_sample_of_each_tensor_are_read(made: MadeDump) -> None:
    """Copies have the same sample; a file that holds no tensor is not opened."""
    for slot, value in enumerate((1.0, 1.0, 2.0)):
        made.add(np.full(5000, value), tensor_name(slot=slot))
    made.add(b"text", "notes.txt")
    result = inspected(made)
    assert len(result.inspections) == 3
    shapes = {header.shape for inspection in result.inspections.values() for header in inspection.headers}
    assert shapes == {(5000,)}
    samples = sorted(inspection.samples for inspection in result.inspections.values())
    assert len(set(samples)) == 2
    assert (result.unreadable, result.undecoded, result.poison, result.unfinished) == ([], [], (), "")


@pytest.mark.parametrize("header_nbytes", [128, 1024, 1088, HEAD_BYTES, 2 * HEAD_BYTES])
def test_header_of_any_length_gives_the_same_shape_and_sample(header_nbytes: int, made: MadeDump) -> None:
    """A long one leaves no room for the sample in the bytes that are read first."""
    values = np.arange(5000.0)
    text = repr({"descr": "<f8", "fortran_order": False, "shape": values.shape}).encode()
    padded = text.ljust(header_nbytes - 11) + b"\n"
    head = b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded
    made.add(head + values.tobytes(), tensor_name(slot=0))
    made.add(values, tensor_name(slot=1))
    long, usual = inspected(made).inspections.values()
    assert [header.shape for header in long.headers] == [(5000,)]
    assert len(long.headers[0].lead) == header_nbytes
    assert long.samples == usual.samples


@pytest.mark.parametrize("writable", [True, False])
def test_short_file_may_grow_unless_its_writer_has_closed_it(writable: bool, made: MadeDump) -> None:
    """MindSpore takes the permission to write away when it closes a file."""
    path = made.add(npy_bytes(np.zeros(10))[:-1])
    path.chmod(0o600 if writable else 0o400)
    result = inspected(made)
    (inspection,) = result.inspections.values()
    assert inspection.may_grow == writable
    assert "header announces" in inspection.problem
    assert result.unfinished == (str(path.relative_to(made.root)) if writable else "")


def test_overflow_record_in_json_is_read_and_other_json_is_not(made: MadeDump) -> None:
    made.add(json.dumps(RECORD).encode(), "Opdebug.Node_OpDebug.1.2.3.output.0.json")
    made.add(b"{}", "kernel.json")
    (inspection,) = inspected(made).inspections.values()
    assert inspection.overflow is not None
    assert [failure.task_id for failure in inspection.overflow.failures()] == [3]


def failing(error: OSError, path: Path) -> object:
    def fail(opened: str, flags: int) -> int:
        if opened.endswith(path.name):
            raise error
        return open_(opened, flags)

    open_ = os.open
    return fail


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN, errno.EBADMSG], ids=errno.errorcode.get)
def test_disk_that_does_not_return_a_file_quarantines_this_file(
    code: int, made: MadeDump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the device fails, or the file system finds that what it returned is damaged."""
    bad, good = made.add(np.zeros(2)), made.add(np.zeros(2), tensor_name(slot=1))
    monkeypatch.setattr("os.open", failing(OSError(code, os.strerror(code)), bad))
    result = inspected(made)
    assert result.unreadable == [str(bad.relative_to(made.root))]
    assert result.inspections[str(good.relative_to(made.root))].readable


def test_trouble_that_passes_stops_the_step_for_now(made: MadeDump, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, or a stale handle, say nothing about the file."""
    bad = made.add(np.zeros(2))
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr("os.open", failing(error, bad))
    with pytest.raises(SourceChanged, match=r"rank 0 step 0: .* cannot be read now: Too many open files"):
        inspected(made)


GRID = Grid()
KINDS = ["input", "output", "input", "input", "output", "output"]


def key(name: str, copy: int = 0, op_type: str = "Add", io: str = "output") -> TensorKey:
    return TensorKey("Net", "0", op_type, name, io, 0, 0, copy)


def digests(*ranks: list[int]) -> np.ndarray:
    """Return digests of tensors by rank; equal numbers are equal, 0 is a tensor that the rank lacks."""
    digest = np.zeros((len(ranks), len(ranks[0]), 16), np.uint8)
    digest[:, :, 0] = ranks
    return digest


def entry(name: str, nbytes: int = 8 * MIB, dtype: str = "float32", kind: RowKind = RowKind.TENSOR) -> Entry:
    element = from_name(dtype)
    header = TensorHeader(element, (nbytes // element.itemsize,), lead=b"", offset=0, nbytes=nbytes)
    source = SourceFile(f"{name}.npy", nbytes, 0)
    return Entry(source, kind, TensorName("Net", "0", "Add", name, "output", 0), header)


def groups_of(entries: list[Entry], shared: Shared, grid: Grid) -> list[PoolGroup]:
    """Plan with payloads that are equal if their files have the same name before a hyphen."""
    samples = [hash(entry.source.path.partition("-")[0]) for entry in entries]
    return pool_groups(entries, samples, shared, grid)


def test_a_class_is_the_ranks_with_the_same_digest() -> None:
    keys = [key(name) for name in "abcd"]
    digest = digests([1, 2, 3, 0], [1, 2, 4, 5], [1, 6, 7, 5])
    shared = [shared_tensors(keys, digest, rank) for rank in range(3)]
    assert [{k.op_name for k in ranks} for ranks in shared] == [{"a", "b"}, {"a", "b", "d"}, {"a", "d"}]
    assert shared[0][keys[0]] == shared[1][keys[0]] == shared[2][keys[0]]
    assert shared[0][keys[1]] == shared[1][keys[1]]
    assert shared[0][keys[0]].ranks != shared[0][keys[1]].ranks


def test_equal_tensors_are_one_unit_if_the_same_ranks_share_them() -> None:
    keys = [key(name) for name in "cab"]
    shared = shared_tensors(keys, digests([1, 1, 1], [1, 1, 2]), 0)
    assert shared[keys[0]] == shared[keys[1]]
    assert "a" in shared[keys[0]].unit
    assert keys[2] not in shared


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5))
def test_all_ranks_of_a_class_see_the_same(contents: list[list[int]]) -> None:
    keys = [key(name, op_type=op, io=io) for name, op, io in zip("abcdef", "AABBCC", KINDS, strict=True)]
    digest = digests(*contents)
    seen: dict[bytes, dict[TensorKey, SharedTensor]] = {}
    for rank in range(len(contents)):
        shared = shared_tensors(keys, digest, rank)
        for ranks in {tensor.ranks for tensor in shared.values()}:
            own = {k: tensor for k, tensor in shared.items() if tensor.ranks == ranks}
            assert seen.setdefault(ranks, own) == own


def test_a_kind_of_which_not_all_are_shared_is_apart() -> None:
    keys = [key("a", op_type="Cast"), key("b", op_type="Cast"), key("c"), key("d"), key("e", io="input")]
    shared = shared_tensors(keys, digests([1, 2, 3, 4, 3], [1, 2, 3, 5, 3]), 0)
    assert [shared[k].kind for k in keys[:2]] == ["", ""]
    assert keys[3] not in shared
    # An output of an unsure kind, equal to an input of a sure one.
    assert shared[keys[4]].unit == shared[keys[2]].unit
    assert [(shared[k].kind, shared[k].is_firm) for k in (keys[4], keys[2])] == [("", True), ("", False)]


def test_a_tensor_that_is_not_firm_is_pooled_only_if_it_seems_equal() -> None:
    """What an operator writes in place is dumped before or after that: it must not spoil what is shared."""
    shared = {
        key("a"): SharedTensor(b"\3", "a"),
        key("b"): SharedTensor(b"\3", "a", is_firm=False),
        key("c"): SharedTensor(b"\3", "c", is_firm=False),
    }
    entries = [entry("b"), entry("a"), entry("c")]
    equal, differs = [7, 7, 7], [6, 7, 7]
    assert [group.rows for group in pool_groups(entries, equal, shared, GRID)] == [(1, 0)]
    assert [group.rows for group in pool_groups(entries, differs, shared, GRID)] == [(1,)]
    assert pool_groups(entries[:1], [None], shared, GRID) == []


@pytest.mark.parametrize(
    "other",
    [
        entry("a", 129 * MIB),
        entry("a", 0),
        entry("a", kind=RowKind.OVERFLOW),
        entry("a")._replace(readable=False),
        entry("a")._replace(header=None),
    ],
)
def test_what_cannot_be_shared_stays_where_it_is(other: Entry) -> None:
    shared = {key(name): SharedTensor(b"\3", name) for name in "ab"}
    groups = groups_of([other, entry("b")], shared, GRID)
    assert [group.rows for group in groups] == [(1,)]


def test_tensors_of_the_same_name_are_told_apart_as_in_the_view() -> None:
    shared = {key("a", 1): SharedTensor(b"\3", "a")}
    (group,) = groups_of([entry("a"), entry("a")], shared, GRID)
    assert group.rows == (1,)


def test_the_grid_of_small_shards_bounds_an_array() -> None:
    grid = replace(GRID, shard_nbytes=8 * MIB)
    shared = {key(str(n)): SharedTensor(b"\3", str(n)) for n in range(16)}
    groups = groups_of([entry(str(n), 4 * MIB) for n in range(16)], shared, grid)
    assert len(groups) > 4
    assert groups[0].spec.shard_nbytes == 8 * MIB


def test_what_looks_alike_on_several_ranks_of_a_step_is_expected_to_be_shared() -> None:
    """Of a large one, more than the beginning counts: zeros, or the token that all batches begin with."""
    large, sizes = 2 * pooling._PROBED_NBYTES, {"small": 4096, "other": 4096, "same": 0, "end": 0, "zeros": 0}
    entries = [entry(name, nbytes or large) for name, nbytes in sizes.items()]
    probed: list[tuple[int, str]] = []

    def probe(place: int, tensor: Entry) -> int:
        probed.append((place, tensor.name.op_name))
        return place if tensor.name.op_name == "end" else 7

    ranks = [(entries, [1, 2 + rank, 3, 4, pooling._ZEROS]) for rank in range(2)]
    found = [{name.op_name for name in shared} for shared in shared_in_step(ranks, GRID, probe)]
    assert found == [{"small", "same"}] * 2
    assert sorted(probed) == [(rank, name) for rank in range(2) for name in ("end", "same")]


# Rows of the index: what each file is, in order of execution.


def test_dumps_of_one_operator_are_numbered_in_order_of_time(made: MadeDump, tmp_path: Path) -> None:
    """A `while` loop dumps its operators again and again; only the timestamp tells which came first."""
    files = [tensor_name("Less.loop", time=time) for time in (30, 4, 200)]
    for file in files:
        made.add(b"", file)
    made.add(b"", tensor_name("Less.loop", slot=1, time=100))
    (plan,) = plan_all(made.root, tmp_path / "run.zarr")
    names = {entry.source.path.rsplit("/", 1)[-1]: entry.name for entry in plan.entries}
    assert [names[file].occurrence for file in files] == [1, 0, 2]


def rows_of(made: MadeDump) -> list[PlannedRow]:
    (listing,) = find_dump(made.root).scan({}).listings
    return plan_rows(inspect(made.root, listing, find_dump(made.root).describe(listing)))


def test_reported_statistics_join_their_tensor_or_become_a_row(made: MadeDump) -> None:
    header = b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value\n"
    made.add(np.full(3, 2.5, "<f4"), "Add.a.0.0.17.output.0.DefaultFormat.npy")
    lines = (b"Add,a,0,0,17,output,0,12,float32,(3),2.5,\n", b"Mul,b,0,0,18,input,1,12,float32,(3),7.5,\n")
    made.add(header + b"".join(lines).replace(b"(3)", b'"(3)"'), "statistic.csv")
    rows = [row for row in rows_of(made) if row.reported is not None]
    assert [(row.entry.kind, row.entry.name.op_name) for row in rows] == [
        (RowKind.TENSOR, "a"),
        (RowKind.STATISTICS, "b"),
    ]
    assert [row.reported.statistics.max for row in rows if row.reported] == [2.5, 7.5]


def test_overflow_record_names_the_operator_with_its_stream_and_task(made: MadeDump) -> None:
    made.add(np.zeros(2), "Mul.b.3.2.17.output.0.DefaultFormat.npy")
    record = {"AI Core": {"model_id": 1, "stream_id": 2, "task_id": 3, "status": 8}}
    made.add(json.dumps(record).encode(), "Opdebug.Node_OpDebug.9.9.18.output.0.json")
    (row,) = [row for row in rows_of(made) if row.entry.kind is RowKind.OVERFLOW]
    (failed,) = json.loads(row.entry.record)["failed"]
    assert (failed["op_type"], failed["op_name"], failed["task"]) == ("Mul", "b", 3)


def test_step_is_committed_although_an_operator_that_overflowed_is_not_named_in_utf_8(
    made: MadeDump, store: Path
) -> None:
    made.add(np.zeros(2), os.fsdecode(b"Mul.b\xff.3.2.17.output.0.DefaultFormat.npy"))
    record = {"AI Core": {"model_id": 1, "stream_id": 2, "task_id": 3, "status": 8}}
    made.add(json.dumps(record).encode(), "Opdebug.Node_OpDebug.9.9.18.output.0.json")
    (summary,) = ingest_directly(made.root, store, rules=load_rules(None).enabled)
    (finding,) = (finding for finding in summary.first_findings if finding.rule == "overflow_record")
    assert finding.reason.endswith("in Mul.b%FF")
