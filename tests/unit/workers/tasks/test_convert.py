"""From files to a store and back: every bit, or a reason why not; commits are whole."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.api import open_store
from tests.device_writer import write
from tests.dump_data_writer import DATA_TYPES, FORMAT_CODES, Tensor, dump_data
from tests.stores import (
    SMALL_GRID,
    DumpLibrary,
    MadeDump,
    ingest_directly,
    listings,
    npy_header,
    plan_all,
    run,
    tensor_name,
)
from tests.wrapped_objects import WrappedObjects
from workers.arrays.digest import digest
from workers.arrays.dtypes import from_name, from_npy_descr
from workers.arrays.statistics import COUNT_FIELDS, summarise
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.dump.source import OpenFile, envelope_digest
from workers.errors import DamagedStore, DumpIngestError, SourceChanged, SourceDiffers, TensorsRemoved
from workers.model import MIB, SourceFile, StepKey
from workers.store import commit
from workers.store.model import CommitSummary, Grid, RowKind
from workers.store.objects import ObjectStore
from workers.store.opening import connect, open_objects, resolve
from workers.store.record import WithoutTensors
from workers.tasks import convert as convert_module
from workers.tasks import entry_statistics
from workers.tasks import run as tasks
from workers.tasks.convert import PART_NBYTES, PayloadBuffer, convert
from workers.tasks.model import Entry, StepPlan
from workers.tasks.publish import publish
from workers.tasks.read_back import ReadBackJob, ReadBackVerdict, read_back, recheck
from workers.tasks.run import pack, run_recheck

# From files to a store and back: every bit, or a reason why not.


DESCRS: list[Any] = [
    *(
        f"{order}{kind}"
        for order, kind in itertools.product("<>", ["i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16"])
    ),
    *("|b1", "|i1", "|u1", "<E2", "<U3", ">U2", "|S5", "|V7", "<M8[ns]", ">m8[s]", "<f16", "<c32"),
    [("a", "<f4"), ("b", ">i2", (2,))],
]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], bool, bytes]:
    """Draw a tensor as it stands in a file: descr, shape, Fortran order, and any payload."""
    descr = draw(st.sampled_from(DESCRS))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    element = from_npy_descr(descr if isinstance(descr, str) else repr(descr))
    nbytes = element.itemsize * int(np.prod(shape, dtype=int))
    if draw(st.booleans()):
        payload = bytes(nbytes)
    else:
        payload = np.random.default_rng(draw(st.integers(0, 5))).bytes(nbytes)
    if descr == "|b1":
        payload = bytes(byte & 1 for byte in payload)
    return descr, shape, draw(st.booleans()), payload


@settings(max_examples=25)
@example([("<f16", (), False, bytes(range(16)))])
@given(st.lists(tensors(), min_size=1, max_size=12))
def test_every_tensor_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[Any, tuple[int, ...], bool, bytes]]
) -> None:
    """NaN payloads, -0.0, 0-d, zero-size, both byte orders, both memory orders, and types that Zarr lacks."""
    root = tmp_path_factory.mktemp("example")
    dump = MadeDump(root / "dump")
    for slot, (descr, shape, fortran, payload) in enumerate(drawn):
        dump.add(npy_header(descr, shape, fortran=fortran) + payload, tensor_name(slot=slot))
    (summary,) = ingest_directly(dump.root, root / "run.zarr", SMALL_GRID)
    assert (summary.status, summary.tensors) == ("complete", len(drawn))
    tensors_by_slot = {tensor.slot: tensor for tensor in open_store(str(root / "run.zarr")).tensors()}
    for slot, (descr, shape, fortran, payload) in enumerate(drawn):
        tensor = tensors_by_slot[slot]
        wanted = np.dtype(ml_dtypes.bfloat16) if descr == "<E2" else np.dtype(descr)
        values = tensor.read()
        assert (values.dtype, values.shape, tensor.shape) == (wanted, shape, shape)
        assert values.tobytes("F" if fortran else "C") == payload
        assert tensor.digest == xxhash.xxh3_128(payload).hexdigest()
        lazy = tensor.dask().compute()
        assert lazy.shape == shape
        # Dask brings everything into the byte order of the machine.
        assert lazy.astype(wanted).tobytes("F" if fortran else "C") == payload
        first, last = tensor.edges(2)
        itemsize = wanted.itemsize
        assert first.tobytes() == payload[: 2 * itemsize]
        assert last.tobytes() == payload[max(len(payload) - 2 * itemsize, 0) :]


def test_equal_payloads_are_stored_once(made: MadeDump, store: Path) -> None:
    """Most bytes of a real dump are copies: an op's output is the next op's input."""
    values = np.arange(1000, dtype="<f4")
    for slot in range(5):
        made.add(values if slot != 3 else values + 1, tensor_name(slot=slot))
    (summary,) = ingest_directly(made.root, store)
    assert summary.duplicates == 3
    tensors = open_store(str(store)).tensors()
    assert [np.array_equal(tensor.read(), values + (tensor.slot == 3)) for tensor in tensors] == [True] * 5
    offsets = {tensor._step.tables.number("offset")[tensor.row] for tensor in tensors}
    assert len(offsets) == 2


def test_equal_bytes_of_other_types_keep_their_own_statistics(made: MadeDump, store: Path) -> None:
    """Types without a Zarr type share one array of bytes; statistics depend on the type."""
    made.add(npy_header(">c8", (4,)) + bytes(32), tensor_name(slot=0))
    made.add(npy_header(">c16", (2,)) + bytes(32), tensor_name(slot=1))
    made.add(npy_header("|V32", (1,)) + bytes(32), tensor_name(slot=2))
    # Beyond float64, in which all statistics are accumulated: rather none than wrong ones.
    made.add(npy_header("<f16", (2,)) + bytes(32), tensor_name(slot=3))
    ingest_directly(made.root, store)
    counts = {tensor.slot: tensor.statistics.count for tensor in open_store(str(store)).tensors()}
    assert counts[0] == 4
    assert counts[1] == 2
    assert np.isnan(counts[2])
    assert np.isnan(counts[3])


def test_reported_statistics_of_a_tensor_that_was_not_dumped_are_kept(tmp_path: Path) -> None:
    """There is nothing to compute them from, and a tensor of no elements is something else."""
    place = tmp_path / "dump/20260101000000/0/Net/1/3"
    place.mkdir(parents=True)
    absent = Tensor(b"", shape=(4,), address=0, size=16, dumped=False)
    name = "Add.a.1.1.1722484800151657"
    (place / name).write_bytes(
        dump_data(outputs=[absent, Tensor(bytes(16), shape=(4,)), Tensor(b"", shape=(0,))])
    )
    (place / f"{name}.csv").write_text(
        "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,"
        "Count,Nan Count,Negative Inf Count,Positive Inf Count\n"
        "Output,0,16,DT_FLOAT,ND,4,2,1,1.5,4,1,0,0\n"
    )
    (summary,) = ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    assert (summary.disagreements, summary.nan_count) == (0, 1)
    tables = open_store(str(tmp_path / "run.zarr")).step(0, 3).tables
    is_tensor = tables.label("kind") == "tensor"
    assert tables.statistic("count")[is_tensor].tolist() == [4, 4, 0]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("piece", [16, 48, 1024])
def test_large_tensor_goes_through_a_small_buffer(
    copies: int, piece: int, made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with the tensor, and pieces change neither digest nor statistics."""
    monkeypatch.setattr(convert_module, "PIECE_BYTES", piece)
    values = np.random.default_rng(0).normal(size=500).astype("<f4")
    values[7] = np.nan
    for slot in range(copies):
        made.add(values, tensor_name(slot=slot))
    (summary,) = ingest_directly(made.root, store, Grid(chunk_nbytes=64, shard_nbytes=256, job_nbytes=10**6))
    assert summary.duplicates == copies - 1
    for tensor in open_store(str(store)).tensors():
        np.testing.assert_array_equal(tensor.read(), values)
        assert tensor.statistics.nan_count == 1
        assert tensor.statistics.max == np.nanmax(values)


@pytest.mark.parametrize("change", ["grow", "touch", "remove", "replace by a link"])
def test_change_between_plan_and_conversion_is_noticed(change: str, made: MadeDump, store: Path) -> None:
    """The header was read when the step was planned: other bytes by now must not get its shape."""
    path = made.add(np.arange(4.0))
    (plan,) = plan_all(made.root, store)
    match change:
        case "grow":
            path.write_bytes(path.read_bytes() + b"x")
        case "touch":
            os.utime(path, ns=(0, 0))
        case "remove":
            path.unlink()
        case _:
            path.rename(path.with_name("elsewhere"))
            path.symlink_to("elsewhere")
    with pytest.raises(SourceChanged):
        run(plan)
    assert not (store / "zarr.json").exists()


LEAD = b"a header"


def written(root: Path, nbytes: int, lead: bytes = LEAD) -> tuple[Entry, bytes]:
    """Write a file of a header and a payload; return its entry, and the payload."""
    payload = np.random.default_rng(nbytes).bytes(nbytes)
    path = root / "file"
    path.write_bytes(LEAD + payload)
    source = SourceFile("file", path.stat().st_size, path.stat().st_mtime_ns)
    header = TensorHeader(from_name("uint8"), (nbytes,), len(LEAD), nbytes, lead)
    return Entry(source, RowKind.TENSOR, TensorName(op_type="Add", io="output", slot=0), header), payload


def test_a_payload_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    entry, payload = written(tmp_path, 1000)
    buffer = PayloadBuffer(300)
    with OpenFile(tmp_path, entry.source, "step 0") as file:
        assert b"".join(bytes(piece) for piece in buffer.pieces(entry, file)) == payload
        assert buffer.ranges(entry, file, [(900, 100), (0, 1), (500, 199)]) == (
            payload[900:] + payload[:1] + payload[500:699]
        )
    assert len(buffer) == 300


def written_with_tail(root: Path, nbytes: int) -> tuple[Entry, bytes]:
    """Write a file with a tail; return its entry, which has the digest of all but the payload."""
    entry, payload = written(root, nbytes, lead=b"")
    path = root / "file"
    path.write_bytes(path.read_bytes() + b"tail")
    source = SourceFile("file", path.stat().st_size, path.stat().st_mtime_ns)
    return entry._replace(source=source, envelope_digest=envelope_digest(LEAD + b"tail")), payload


@pytest.mark.parametrize("nbytes", [0, 10, 2 * PART_NBYTES])
def test_an_envelope_is_read_with_its_payload(tmp_path: Path, nbytes: int) -> None:
    entry, payload = written_with_tail(tmp_path, nbytes)
    buffer = PayloadBuffer(max(nbytes, 1))
    with OpenFile(tmp_path, entry.source, "step 0") as file:
        known, parts = buffer.hold(entry, nbytes, file)
        assert (known, b"".join(parts)) == (digest(payload), payload)
        expected = envelope_digest(LEAD + b"tail")
        assert file.envelope(len(LEAD), nbytes, expected) == LEAD + b"tail"


@pytest.mark.parametrize("nbytes", [0, 10, 2 * PART_NBYTES])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"A" + content[1:], "different header"),
        (lambda content: content[:-1] + b"L", "different header"),
        (lambda content: content[:-1], "ended at byte"),
    ],
)
def test_a_change_in_an_envelope_is_noticed_whatever_its_size_and_time(
    tmp_path: Path, nbytes: int, change: Callable[[bytes], bytes], message: str
) -> None:
    entry, _ = written_with_tail(tmp_path, nbytes)
    path = tmp_path / "file"
    buffer = PayloadBuffer(max(nbytes, 1))

    def read(file: OpenFile) -> None:
        buffer.hold(entry, nbytes, file)
        assert entry.envelope_digest is not None
        file.envelope(entry.offset, nbytes, entry.envelope_digest)

    with OpenFile(tmp_path, entry.source, "step 0") as file:
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(SourceChanged, match=message):
            read(file)


# Tensors larger than the memory of a worker.


#: Formats, their host shapes, groups, and whether the tensor can be cut into slabs.
LAYOUTS = [
    ("NC1HWC0", (5, 40, 9, 7), 1, True),
    ("NHWC", (3, 20, 9, 7), 1, True),
    ("FRACTAL_NZ", (3, 70, 50), 1, True),
    ("NDC1HWC0", (2, 20, 3, 4, 5), 1, True),
    ("FRACTAL_Z", (40, 20, 3, 3), 1, False),
    ("FRACTAL_Z", (18, 5, 3, 2), 3, False),
]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("layout_of", LAYOUTS)
def test_large_tensor_in_device_layout_has_statistics(
    layout_of: tuple[str, tuple[int, ...], int, bool],
    copies: int,
    made: MadeDump,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stays as it is; what is counted are its elements, and not the padding between them."""
    name, shape, groups, can_be_cut = layout_of
    monkeypatch.setattr(entry_statistics, "MAX_CONVERTED_BYTES", 1000)
    monkeypatch.setattr(convert_module, "PIECE_BYTES", 12_000)
    directory = made.root / "20260101000000" / "3" / "Net" / "1" / "7"
    directory.mkdir(parents=True)
    host = np.random.default_rng(0).normal(size=shape).astype(np.float16)
    host.reshape(-1)[5:8] = np.nan
    device, layout = write(host, name, groups=groups)
    device[device == 0] = 9  # in the padding
    part = Tensor(
        device.tobytes(),
        DATA_TYPES["float16"],
        layout.shape,
        shape,
        FORMAT_CODES[name],
        groups if groups > 1 else 0,
    )
    (directory / "Op.of_0.5.2.1700000000000000").write_bytes(dump_data([part] * copies))

    (summary,) = ingest_directly(made.root, store)

    assert (summary.tensors, summary.duplicates) == (copies, copies - 1)
    wanted = summarise(host.reshape(-1))
    for tensor in open_store(str(store)).tensors():
        assert tensor.read().tobytes() == host.tobytes()
        if not can_be_cut:
            assert np.isnan(tensor.statistics.count)
            continue
        for field in COUNT_FIELDS:
            assert getattr(tensor.statistics, field) == getattr(wanted, field)
        assert (tensor.statistics.min, tensor.statistics.max) == (wanted.min, wanted.max)
        assert tensor.statistics.mean == pytest.approx(wanted.mean, rel=1e-12, abs=1e-15)
        assert tensor.statistics.std == pytest.approx(wanted.std, rel=1e-12)


#: Converts and publishes what it is named, and says how much memory that took beyond its imports.
_INGEST = """
import resource, sys
from pathlib import Path
from tests.stores import plan_all, run
from workers.arrays.compiled import kernels
from workers.model import MIB
from workers.store.model import Grid

kernels.warm_up()
(plan,) = plan_all(Path(sys.argv[1]), sys.argv[2], Grid(shard_nbytes=32 * MIB))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if len(sys.argv) > 3:
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + int(sys.argv[3]),) * 2)
summary = run(plan)
assert summary.status == "complete", summary
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.timeout(60)
def test_tensor_of_a_gibibyte_goes_through_a_process_of_a_fraction_of_it(made: MadeDump, store: Path) -> None:
    """A worker with a limit must not be killed by the size of what it is given.

    The process may not map more than 160 MiB beside what it has mapped when it begins.
    """
    path = made.add(npy_header("<f4", (256 * MIB,)), tensor_name())
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) + 1024 * MIB)  # zeros, and no disk for them
        tail = np.random.default_rng(0).random(24 * MIB, np.float32)  # shards that nothing makes smaller
        tail[-1] = 1023
        file.seek(-tail.nbytes, os.SEEK_END)
        file.write(tail.tobytes())

    done = subprocess.run(
        [sys.executable, "-c", _INGEST, str(made.root), str(store), str(160 * MIB)],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[4],
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 160 * MIB
    (tensor,) = open_store(str(store)).tensors()
    assert tensor.shape == (256 * MIB,)
    assert tensor.statistics.max == 1023
    assert tensor.statistics.zero_count == 256 * MIB - np.count_nonzero(tail)
    assert tensor.edges(2)[1].tolist() == tail[-2:].tolist()


# Commits: whole, and never in the place of something newer, even by a task that was stopped for long.


KEY = StepKey(0, 0)


def planned(dump: MadeDump, store: Path) -> StepPlan:
    """Plan the step as the service does: with the generation that is committed at that time."""
    (plan,) = plan_all(dump.root, store)
    committed = commit.read(objects_of(store), KEY)
    return replace(plan, replaces=committed.fingerprint if committed else "")


def objects_of(store: Path) -> ObjectStore:
    return connect(resolve(str(store)))


@pytest.fixture
def plans(made: MadeDump, store: Path) -> tuple[StepPlan, StepPlan]:
    """A plan, and one of the same step when a file more had come; neither is committed."""
    made.add(np.zeros(3), tensor_name(slot=0))
    old = planned(made, store)
    made.add(np.ones(3), tensor_name(slot=1))
    return old, planned(made, store)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_late_task_does_not_bring_back_an_older_generation(
    made: MadeDump, store: Path, plans: tuple[StepPlan, StepPlan], *, is_first: bool
) -> None:
    """Whether or not anything was committed when it was planned."""
    old, new = plans
    if not is_first:
        run(old)
        made.add(np.full(3, 2.0), tensor_name(slot=2))
        old = planned(made, store)
        made.add(np.full(3, 3.0), tensor_name(slot=3))
        new = planned(made, store)
    receipts = [convert(job) for job in old.jobs]
    run(new)
    with pytest.raises(SourceChanged):
        publish(old, receipts)
    committed = commit.read(objects_of(store), KEY)
    assert committed is not None
    assert committed.fingerprint == new.fingerprint
    assert len(open_store(str(store)).tensors()) == (2 if is_first else 4)


def test_a_task_that_is_stopped_right_before_its_commit_looks_again(
    store: Path, plans: tuple[StepPlan, StepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything but the last look and the commit was done before it was stopped."""
    old, new = plans

    class Stopped(WrappedObjects):
        def put_many(self, objects: Mapping[str, bytes]) -> None:
            super().put_many(objects)
            monkeypatch.undo()
            run(new)

    monkeypatch.setattr("workers.tasks.publish.open_objects", lambda _: Stopped(objects_of(store)))
    with pytest.raises(SourceChanged):
        run(old)
    committed = commit.read(objects_of(store), KEY)
    assert committed is not None
    assert committed.fingerprint == new.fingerprint


def test_a_late_task_does_not_bring_back_tensors_that_were_removed(made: MadeDump, store: Path) -> None:
    """Its commit would point to what is being deleted."""
    made.add(np.zeros(3), tensor_name(slot=0))
    plan = planned(made, store)
    run(plan)
    objects = objects_of(store)
    committed = commit.read(objects, KEY)
    assert committed is not None
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))
    with pytest.raises(SourceChanged):
        run(plan)
    there = commit.read(objects, KEY)
    assert there is not None
    assert there.without_tensors is not None


def test_a_commit_of_less_than_was_planned_is_refused(made: MadeDump, store: Path) -> None:
    """It would lose data."""
    for slot in range(20):
        made.add(np.arange(100.0) + slot, tensor_name(slot=slot))
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    receipts = [convert(job) for job in plan.jobs]
    with pytest.raises(DumpIngestError, match="receipts do not cover all jobs"):
        publish(plan, receipts[1:])
    assert commit.read(objects_of(store), KEY) is None


# Reading back: every byte of a source file is compared with what the store has of it.


@pytest.fixture
def plan_to_read(made: MadeDump, store: Path) -> StepPlan:
    """A committed step of two tensors and a table."""
    for slot in range(2):
        made.add(np.arange(40, dtype="<f4") + slot, tensor_name(slot=slot))
    made.add(b"a,b\n", "table.csv")
    (planned,) = plan_all(made.root, store)
    run(planned)
    return planned


def job_of(plan_to_read: StepPlan) -> ReadBackJob:
    files = tuple(dict.fromkeys(entry.source for entry in plan_to_read.entries))
    return ReadBackJob(
        plan_to_read.key, plan_to_read.fingerprint, plan_to_read.origin.root, plan_to_read.store, files
    )


def test_every_byte_is_compared(plan_to_read: StepPlan) -> None:
    result = read_back(job_of(plan_to_read))
    assert result.verdicts.tolist() == [ReadBackVerdict.SAME] * 3
    assert result.nbytes == plan_to_read.nbytes


@pytest.mark.parametrize("at", [20, -1])
def test_a_byte_written_in_place_is_found_though_the_time_is_set_back(
    plan_to_read: StepPlan, at: int
) -> None:
    """In the header, which no digest covers, as in the payload."""
    path = Path(plan_to_read.origin.root) / plan_to_read.entries[-1].source.path
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SourceDiffers, match=r"rank 0 step 0: .* differs from the store"):
        read_back(job_of(plan_to_read))


def test_a_missing_shard_a_later_generation_and_removed_tensors_are_told_apart(
    plan_to_read: StepPlan, store: Path
) -> None:
    (shard,) = (path for path in (store / "rank_0/step_0").rglob("c/0") if "tensors" in path.parts)
    shard.rename(shard.with_name("away"))
    with pytest.raises(DamagedStore):
        read_back(job_of(plan_to_read))
    objects = open_objects(plan_to_read.store)
    current = commit.read(objects, plan_to_read.key)
    assert current is not None
    commit.drop_tensors(objects, current, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))
    with pytest.raises(TensorsRemoved):
        read_back(job_of(plan_to_read))
    (Path(plan_to_read.origin.root) / "rank_0/Net/0/0/table.csv").write_text("a,b\n1,2\n")
    ingest_directly(Path(plan_to_read.origin.root), store)
    with pytest.raises(SourceChanged, match="another generation"):
        read_back(job_of(plan_to_read))


def jobs(dump: Path, store: Path) -> Iterator[ReadBackJob]:
    """Yield a job for each committed step of a dump, with all of its files."""
    objects = open_objects(resolve(str(store)))
    for key, listing in listings(dump).items():
        committed = commit.read(objects, key)
        if committed is not None:
            yield ReadBackJob(
                key, committed.fingerprint, committed.record.source.root, objects.address, listing.files
            )


def rewrite(path: Path, at: int) -> None:
    """Flip a bit of a file, and give it its old times."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", ["nan-log-2rank", "cann-bin-synthetic"])
def test_what_was_not_written_anew_is_the_same(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    """Of real dumps, some of them in the layout of an accelerator."""
    dump = dumps[name] / ("dump" if (dumps[name] / "dump").is_dir() else "tf")
    ingest_directly(dump, tmp_path / "run.zarr")
    found = list(jobs(dump, tmp_path / "run.zarr"))
    assert found
    assert run_recheck(pack(found)) == [()] * len(found)


@pytest.mark.parametrize("at", [0, 40, 130, -1])
@pytest.mark.parametrize("kind", ["tensor", "file"])
def test_a_file_that_was_written_anew_is_named_wherever_it_differs(
    at: int, kind: str, made: MadeDump, store: Path
) -> None:
    made.add(np.arange(100.0), tensor_name(slot=0))
    path = made.add(np.arange(100.0) + 1, tensor_name(slot=1) if kind == "tensor" else "table.bin")
    ingest_directly(made.root, store)
    rewrite(path, at)
    (job,) = jobs(made.root, store)
    assert recheck(job) == (str(path.relative_to(made.root)),)


def test_another_listing_or_commit_is_not_compared(made: MadeDump, store: Path) -> None:
    path = made.add(np.arange(100.0), tensor_name(slot=0))
    ingest_directly(made.root, store)
    (job,) = jobs(made.root, store)
    rewrite(path, -1)
    other = SourceFile(job.files[0].path, job.files[0].size, job.files[0].mtime_ns + 1)
    assert recheck(ReadBackJob(job.key, job.fingerprint, job.root, job.store, (other,))) == ()
    with pytest.raises(SourceChanged):
        recheck(ReadBackJob(job.key, "another", job.root, job.store, job.files))
    with pytest.raises(SourceChanged):
        recheck(ReadBackJob(StepKey(7, 7), job.fingerprint, job.root, job.store, job.files))
    path.touch()
    with pytest.raises(SourceChanged):
        recheck(job)


# Arguments of tasks come back from packing as they were; tasks return what their functions do.


@pytest.fixture(
    params=["lenet-1rank/dump", "cann-bin-synthetic/torchair", "msprobe-26.2.0-pytorch-cpu/tensor-mix"]
)
def plans_of(request: pytest.FixtureRequest, dumps: DumpLibrary, store: Path) -> list[StepPlan]:
    """The plans of every step of a dump, each of several jobs: npy, several tensors in a file, and `.pt`."""
    name, _, part = request.param.partition("/")
    return plan_all(dumps[name] / part, store, SMALL_GRID)


def test_a_step_that_fails_does_not_fail_the_others_of_its_task(made: MadeDump, store: Path) -> None:
    for step in range(3):
        made.add(np.arange(4, dtype="<f4") + step, tensor_name(), step=step)
    plans_of = plan_all(made.root, store)
    (made.root / plans_of[1].entries[0].source.path).unlink()
    first, second, third = tasks.run_steps(tasks.pack_steps(plans_of))
    assert isinstance(second, SourceChanged)
    assert [summary.key for summary in (first, third) if isinstance(summary, CommitSummary)] == [
        plans_of[0].key,
        plans_of[2].key,
    ]


def test_an_unexpected_error_is_one_of_ours_and_names_the_step(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        message = "a bug"
        raise ValueError(message)

    made.add(np.arange(4, dtype="<f4"))
    monkeypatch.setattr("workers.tasks.run.convert", broken)
    (error,) = tasks.run_steps(tasks.pack_steps(plan_all(made.root, store)))
    assert isinstance(error, DumpIngestError)
    assert error.message == "rank 0 step 0: ValueError: a bug"
