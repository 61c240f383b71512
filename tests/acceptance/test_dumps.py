"""Dumps as they come: of every system, of older versions, large, damaged, and back again."""

import json
import pickle
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ingest
from bench.load import Load, build
from ingest import open_store
from ingest.reader.dump_store import DumpStore
from ingest.reader.step import Step, summary_row
from ingest.reader.tensor import Tensor
from tests import checker, dump_data_writer
from tests.cli import run, run_here, start
from tests.replay import iterations
from tests.servers.cluster import DaskCluster
from tests.stores import DATA, DumpLibrary, ingest_and_open, ingest_directly, npy_header, unpack
from tests.torch_truth import differences, truth
from workers.errors import UsageError
from workers.model import MIB, StepKey
from workers.store.model import CommitSummary, Grid

# Every dump system there is, with no flag.


#: Trees, the ranks and steps in them, and how many tensors have elements, and how many statistics only.
TREES = (
    ("cann-bin-synthetic/tf", {(0, 5)}, 25, 0),
    ("cann-bin-synthetic/torchair", {(1, 0)}, 14, 0),
    ("cann-bin-synthetic/stats", {(0, 4)}, 0, 3),
    ("msprobe-26.2.0-mindspore-cpu", {(0, 0)}, 60, 0),
    ("msprobe-26.2.0-pytorch-cpu/tensor-mix", {(0, 0)}, 138, 0),
    ("msprobe-26.2.0-pytorch-cpu/statistics", {(0, 0)}, 0, 138),
    ("msprobe-26.2.0-pytorch-cpu/crc", {(0, 0)}, 0, 138),
    ("msprobe-26.2.0-pytorch-cpu/ddp-2-ranks", {(0, 0), (1, 0)}, 126, 0),
)
#: Those that go by the command and a cluster; the others are taken in within this process.
BY_COMMAND = ("cann-bin-synthetic/torchair", "msprobe-26.2.0-pytorch-cpu/ddp-2-ranks")
CANN = ("tf", "torchair", "mindspore_acl")


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.dask
@pytest.mark.parametrize(("name", "steps", "tensors", "statistics"), TREES)
def test_tree_is_taken_with_no_flag_and_comes_back_byte_for_byte(
    name: str,
    steps: set[tuple[int, int]],
    tensors: int,
    statistics: int,
    *,
    dumps: DumpLibrary,
    cluster: DaskCluster,
    tmp_path: Path,
) -> None:
    archive, _, below = name.partition("/")
    dump, store, back = dumps[archive] / below, tmp_path / "run.zarr", tmp_path / "back"
    if name in BY_COMMAND:
        rows = run("ingest", dump, "--store", store, "--scheduler", cluster.address, "--json").json
    else:
        rows = [summary_row(summary) for summary in ingest_directly(dump, store)]
    assert {(row["rank"], row["step"]) for row in rows} == steps
    assert {row["status"] for row in rows} == {"complete"}
    assert (sum(row["tensors"] for row in rows), sum(row["statistics_only"] for row in rows)) == (
        tensors,
        statistics,
    )
    assert sum(row["disagreements"] + row["unparsed"] for row in rows) == 0
    checker.check(store, dump)
    opened = open_store(store)
    assert list(opened.verify()) == []
    assert not any(file.problem for step in opened.select() for file in step.export(back))
    assert files_below(back) == files_below(dump)


def test_a_file_still_being_written_leaves_the_rest_of_its_step(dumps: DumpLibrary, tmp_path: Path) -> None:
    (summary,) = ingest_directly(dumps["cann-bin-synthetic"] / "mindspore_acl", tmp_path / "run.zarr")
    assert (summary.key, summary.status) == (StepKey(0, 3), "partial")
    assert (summary.tensors, summary.quarantined) == (11, 1)


def cann_tensors(
    dumps: DumpLibrary, store: Path, *, grid: Grid | None = None
) -> dict[tuple[str, str, int], Tensor]:
    found = {}
    for name in CANN:
        place = store / f"{name}.zarr"
        ingest_directly(dumps["cann-bin-synthetic"] / name, place, grid)
        for tensor in open_store(place).tensors():
            found[f"{name}/{tensor.source}", tensor.io, tensor.slot] = tensor
    return found


@pytest.mark.parametrize("keep_device_layout", [False, True])
def test_every_expected_array_of_cann_files_matches(
    keep_device_layout: bool, dumps: DumpLibrary, tmp_path: Path
) -> None:
    """In host layout whichever way they are stored, and as the device had them."""
    found = cann_tensors(dumps, tmp_path, grid=Grid(keep_device_layout=keep_device_layout))
    compared = 0
    converted = 0
    for file in json.loads((dumps["cann-bin-synthetic"] / "manifest.json").read_text()):
        for told in file["tensors"]:
            if not (expected_file := told.get("expected")):
                continue
            tensor = found[file["file"], told["io"], told["index"]]
            expected = np.load(dumps["cann-bin-synthetic"] / expected_file)
            # Types that npy has not are widened there.
            values = tensor.read()
            assert values.shape == expected.shape
            np.testing.assert_array_equal(values.astype(expected.dtype), expected)
            assert tensor.statistics.count == expected.size
            assert tensor.statistics.nan_count == np.count_nonzero(expected != expected)  # noqa: PLR0124
            np.testing.assert_array_equal(tensor.dask().compute().astype(expected.dtype), expected)
            if tensor.device_shape is not None:
                assert list(tensor.device_shape) == told["device_shape"]
                device = tensor.read_device()
                assert list(device.shape) == told["device_shape"]
                assert np.count_nonzero(device.astype(np.float64)) == np.count_nonzero(expected)
                converted += 1
            compared += 1
    assert (compared, converted) == (49, 11)


def test_statistics_are_those_of_the_file_to_its_printed_precision(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    dump = dumps["msprobe-26.2.0-pytorch-cpu"] / "statistics"
    ingest_directly(dump, tmp_path / "run.zarr")
    (told,) = [json.loads(path.read_text())["data"] for path in dump.rglob("dump.json")]
    found = {tensor.name: tensor for tensor in open_store(tmp_path / "run.zarr").tensors()}
    conv = told["Functional.conv2d.0.forward"]["output"][0]
    (tensor,) = [t for name, t in found.items() if "Functional.conv2d.0.forward.output" in name]
    assert not tensor.is_dumped
    assert (tensor.statistics.max, tensor.statistics.min) == (conv["Max"], conv["Min"])
    assert (tensor.statistics.mean, tensor.statistics.l2_norm) == (conv["Mean"], conv["Norm"])
    assert (tensor.shape, tensor.dtype) == (tuple(conv["shape"]), "float32")
    assert tensor.statistics_from.endswith("dump.json")
    for read in (tensor.read, tensor.read_device, tensor.dask, lambda: tensor.edges(1)):
        with pytest.raises(UsageError, match="only statistics"):
            read()


def write_operator(place: Path, name: str, data: bytes) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(data)


def test_overflow_record_names_the_operator_that_failed(tmp_path: Path) -> None:
    """By stream and task inside the record, which are not those in its name."""
    place = tmp_path / "dump" / "20260101000000" / "0" / "Net" / "1" / "7"
    tensor = dump_data_writer.Tensor(
        np.array([1, np.inf], np.float32).tobytes(), shape=[2], original_shape=[2]
    )
    write_operator(
        place, "Mul.Default_Mul-op3.34.9.1700000000000001", dump_data_writer.dump_data([], [tensor])
    )
    words = [0] * 256
    words[32:38] = [1, 9, 34, 0, 0x1000, 0x2000]  # AI Core: model, stream, task, type, pc_start, para_base
    words[128:131] = [0, 0, 1]  # kernel_code, block_idx, status
    record = dump_data_writer.Tensor(
        struct.pack("<256Q", *words), data_type=4, shape=[2048], original_shape=[2048]
    )
    write_operator(
        place, "Opdebug.Node_OpDebug.5.2.1700000000000002", dump_data_writer.dump_data([], [record])
    )
    (summary,) = ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    assert (summary.key, summary.overflows, summary.tensors) == (StepKey(0, 7), 1, 1)
    (row,) = run("ls", tmp_path / "run.zarr", "--overflows", "--json").json
    assert (row["op_type"], row["op_name"]) == ("Mul", "Default_Mul-op3")
    assert (row["stream"], row["task"], row["unit"]) == (9, 34, "AI Core")
    assert "Mul.Default_Mul-op3" in run("ls", tmp_path / "run.zarr", "--overflows").stdout


def test_overflow_record_in_json_that_was_cut_is_quarantined(dumps: DumpLibrary, tmp_path: Path) -> None:
    """Its writer died: that there was an overflow must not go unsaid."""
    (whole, _) = sorted((dumps["cann-bin-synthetic"] / "expected").glob("Opdebug*.json"))
    place = tmp_path / "dump" / "20260101000000" / "0" / "Net" / "1" / "7"
    write_operator(place, whole.name, whole.read_bytes())
    write_operator(place, "Opdebug.Node_OpDebug.1.7.1722484800168309.output.0.json", whole.read_bytes()[:100])
    (summary,) = ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    assert (summary.overflows, summary.quarantined, summary.status) == (1, 1, "partial")
    assert len(run("ls", tmp_path / "run.zarr", "--overflows", "--json").json) == 1


def test_arguments_that_are_no_tensors_are_kept_as_files(tmp_path: Path) -> None:
    """TorchAir saves them too, as pickled objects: nothing is wrong with such a step."""
    place = tmp_path / "dump" / "worldsize1_global_rank0" / "graph_1" / "0"
    place.mkdir(parents=True)
    np.save(place / "add-aten.add.Tensor.INPUT.0.20240801120000123456.npy", np.ones(3, np.float32))
    np.save(place / "add-aten.add.Tensor.INPUT.1.20240801120000123457.npy", np.array(None), allow_pickle=True)
    (summary,) = ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    assert (summary.status, summary.tensors, summary.files) == ("complete", 1, 1)
    (row,) = run("ls", tmp_path / "run.zarr", "--problems", "--json").json
    assert "holds no tensor" in row["problem"]
    assert "never loaded" in row["problem"]


def made_of_all(dumps: DumpLibrary, root: Path) -> Path:
    """Put trees of several systems under one root, as they are where one job uses several."""
    shutil.copytree(dumps["mindspore-2.7.1-cpu-sync"] / "lenet" / "rank_0", root / "rank_0")
    shutil.copytree(dumps["cann-bin-synthetic"] / "torchair", root, dirs_exist_ok=True)
    shutil.copytree(dumps["cann-bin-synthetic"] / "tf", root, dirs_exist_ok=True)
    shutil.copytree(dumps["msprobe-26.2.0-pytorch-cpu"] / "ddp-2-ranks", root, dirs_exist_ok=True)
    shutil.copytree(dumps["synthetic-text"] / "torchair-eager", root, dirs_exist_ok=True)
    return root


def test_several_systems_under_one_root_make_one_store(dumps: DumpLibrary, tmp_path: Path) -> None:
    root = made_of_all(dumps, tmp_path / "dump")
    store = tmp_path / "run.zarr"
    summaries = {summary.key: summary for summary in ingest_directly(root, store)}
    assert summaries.keys() == {
        StepKey(0, None),
        *(StepKey(rank, step) for rank, step in ((0, 0), (0, 2), (0, 5), (1, 0))),
    }
    layouts = {step.key: step.commit.record.source.layout for step in open_store(store).select()}
    assert layouts[StepKey(0, 0)] == "mindspore+msprobe+torchair"
    assert layouts[StepKey(1, 0)] == "cann+msprobe"
    run_here("export", store, tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(root)


@pytest.mark.dask
def test_rank_comes_from_the_table_the_user_or_is_the_device(
    dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    root = tmp_path / "dump"
    shutil.copytree(dumps["cann-bin-synthetic"] / "tf", root)

    def ingest(store: str, *flags: str) -> tuple[int, str]:
        done = run(
            "ingest", root, "--store", tmp_path / store, "--scheduler", cluster.address, "--json", *flags
        )
        (row,) = [row for row in done.json if row["step"] is not None]
        return row["rank"], done.stderr

    rank, said = ingest("device.zarr")
    assert rank == 0
    assert "0 is a device id" in said
    assert "--rank-map" in said
    assert ingest("mapped.zarr", "--rank-map", "0=12")[0] == 12
    shutil.copy(dumps["synthetic-text"] / "hccl" / "hccl.json", root)
    table = json.loads((root / "hccl.json").read_text())
    ranks = {d["device_id"]: int(d["rank_id"]) for s in table["server_list"] for d in s["device"]}
    rank, said = ingest("table.zarr")
    assert rank == ranks["0"]
    assert "device id" not in said
    for wrong in ("0=1,1=1", "a=b", "0"):
        refused = run_here("ingest", root, "--store", tmp_path / "no.zarr", "--rank-map", wrong, code=2)
        assert "rank_map (--rank-map)" in refused.stderr


@pytest.mark.dask
def test_process_directory_that_becomes_a_rank_while_it_is_watched(
    dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    """msProbe renames proc{pid} when the process learns its rank."""
    dump, store = tmp_path / "dump", tmp_path / "run.zarr"
    (process,) = (dumps["msprobe-26.2.0-pytorch-cpu"] / "tensor-mix" / "step0").iterdir()
    env = {"DUMP_INGEST_QUIET_S": "3", "DUMP_INGEST_SETTLE_S": "0.5"}
    with start("watch", dump, "--store", store, "--scheduler", cluster.address, env=env) as watch:
        place = dump / "step0" / process.name
        shutil.copytree(process, place, copy_function=shutil.copyfile)
        watch.wait_until(lambda: watch.events("watching"))
        place.rename(dump / "step0" / "rank3")
        watch.wait_until(lambda: watch.events("step_committed"))
        assert watch.terminate() == 0
        assert [(e["rank"], e["step"]) for e in watch.events("step_committed")] == [(3, 0)]
    (leaf,) = checker.leaves(store)
    assert (leaf.rank, leaf.step, leaf.status) == (3, 0, "complete")


# Dumps that older versions of SGLang, msProbe and TransformerEngine wrote, on CPU.


@pytest.fixture(scope="module")
def old_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("older")
    unpack("pt/older-versions", into)
    return into / "older-versions"


def ingested(root: Path, store: Path) -> DumpStore:
    return ingest_and_open(root / "dump", store)


@pytest.mark.parametrize(
    "name", ["sglang-0.4.9", "sglang-0.4.10.post2", "sglang-0.5.9", "transformer-engine-2.15"]
)
def test_every_tensor_and_every_file_is_as_it_was(name: str, old_dumps: Path, tmp_path: Path) -> None:
    store = ingested(old_dumps / name, tmp_path / "run.zarr")
    told = truth(old_dumps / name)
    assert list(differences(told, "dump/", store)) == []
    steps = list(store.select())
    assert sum(step.commit.summary.tensors for step in steps) == sum(len(f["tensors"]) for f in told.values())
    assert sum(step.commit.summary.quarantined for step in steps) == 0
    for step in steps:
        step.export(tmp_path / "exported")
    exported = {path.relative_to(tmp_path / "exported") for path in (tmp_path / "exported").rglob("*.pt")}
    assert exported == {Path(path).relative_to("dump") for path in told}
    for path in exported:
        assert (tmp_path / "exported" / path).read_bytes() == (old_dumps / name / "dump" / path).read_bytes()


@pytest.mark.parametrize("version", ["0.4.10.post2", "0.5.9"])
def test_pass_of_sglang_is_a_step(version: str, old_dumps: Path, tmp_path: Path) -> None:
    """It counts from 1. A tensor has the same name in every pass and on every rank."""
    store = ingested(old_dumps / f"sglang-{version}", tmp_path / "run.zarr")
    assert (store.ranks, store.steps) == ([0, 1], [1, 2, 3])
    names = [[tensor.name for tensor in store.tensors(rank=0, step=step)] for step in store.steps]
    assert names[0] == names[1] == names[2]
    assert names[0][0].startswith("dump.hidden_states.layer_id=0")
    assert len(set(names[0])) == len(names[0])
    origin = ingest.origin(store)
    assert (origin.op_type, origin.rank, origin.step) == ("dump", 1, 3)
    assert str(origin.op_name).startswith("scores")


def test_first_dumper_of_sglang_has_a_directory_for_each_rank(old_dumps: Path, tmp_path: Path) -> None:
    store = ingested(old_dumps / "sglang-0.4.9", tmp_path / "run.zarr")
    assert (store.ranks, store.steps) == ([0, 1], [1, 2, 3])
    assert len(store.tensors("dump.attn/out.output.0")) == 6
    origin = ingest.origin(store)
    assert (origin.op_name, origin.rank, origin.step) == ("attn/out", 1, 2)


def test_gradients_of_parameters_of_old_msprobe_are_no_origin(old_dumps: Path, tmp_path: Path) -> None:
    """Their entries stand behind the forward calls of their modules, and were filled in after all others."""
    store = ingested(old_dumps / "msprobe-8.1.0", tmp_path / "run.zarr")
    origin = ingest.origin(store)
    assert (origin.op_type, origin.how, origin.step) == ("Torch.log", "born", 2)
    order = [tensor.op_name for tensor in store.tensors(step=2)]
    assert all(name.endswith(".parameters_grad") for name in order[-6:])
    assert order[-1] == "Module.stem.0.Linear.parameters_grad"


# Dumps that are not as they should be: late, repeated, cut short, or no tensors at all.


@pytest.fixture
def dump(dump_copy: Callable[[str], Path]) -> Path:
    """Three iterations of one rank, which a test may damage."""
    return dump_copy("lenet-1rank") / "dump"


def tensor_files(dump: Path, step: int) -> list[Path]:
    return sorted((dump / f"rank_0/LeNet/0/{step}").glob("*.npy"))


def relative(files: list[Path], dump: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(dump)) for path in files)


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._marker,)


def assert_partial(dump: Path, store: Path, bad: list[Path], cluster: DaskCluster, back: Path) -> None:
    """Ingest; the bad files are named and kept, everything else is as if they were not there."""
    names = relative(bad, dump)
    done = run("ingest", dump, "--store", store, "--scheduler", cluster.address, "--json", code=4)
    assert f"{len(bad)} files quarantined" in done.stderr
    assert "ls STORE --problems" in done.stderr
    assert {row["step"] for row in done.json if row["status"] == "partial"} == {2}
    assert sum(row["quarantined"] for row in done.json) == len(bad)

    problems = run_here("ls", store, "--problems", "--json").json
    assert {row["source"] for row in problems} == names
    assert {row["kind"] for row in problems} == {"quarantined"}
    assert all(row["problem"] for row in problems)
    table = run_here("ls", store, "--problems").stdout
    assert all(name in table for name in names)

    leaves = checker.check(store, dump, partial=names)
    assert [leaf.status for leaf in leaves if leaf.step == 2] == ["partial"]
    assert run_here("verify", store, "--json").json == []
    run_here("export", store, back)
    for path in dump.rglob("*"):
        if path.is_file():
            assert (back / path.relative_to(dump)).read_bytes() == path.read_bytes()


@pytest.mark.dask
def test_killed_writer_and_full_disk_leave_a_partial_step(
    dump: Path, cluster: DaskCluster, tmp_path: Path
) -> None:
    """Short files of mode 0644 and empty ones of mode 0400 will not grow any more: they are set aside."""
    files = tensor_files(dump, 2)
    short, cut_in_the_header, empty, no_disk_left = files[3], files[50], files[100], files[101]
    for path in files:
        path.chmod(0o400)
    for path, length in ((short, 130), (cut_in_the_header, 60), (empty, 0)):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:length])
    no_disk_left.chmod(0o600)
    no_disk_left.write_bytes(b"")
    no_disk_left.chmod(0o400)

    bad = [short, cut_in_the_header, empty, no_disk_left]
    assert_partial(dump, tmp_path / "run.zarr", bad, cluster, tmp_path / "back")


@pytest.mark.dask
def test_files_that_lie_are_set_aside_unopened(dump: Path, cluster: DaskCluster, tmp_path: Path) -> None:
    """Pickled objects, headers of impossible sizes and no npy at all: kept as bytes, never loaded."""
    marker = tmp_path / "was-unpickled"
    objects, huge, too_long, no_npy, nonsense = tensor_files(dump, 2)[10:15]
    objects.write_bytes(npy_header("|O", (1,)) + pickle.dumps([Trap(marker)]))
    huge.write_bytes(npy_header("<f4", (2**40, 2**20)) + bytes(64))
    too_long.write_bytes(npy_header("<f4", (4,)) + bytes(17))
    no_npy.write_bytes(b"PK\x03\x04 is the beginning of a zip archive")
    nonsense.write_bytes(npy_header("__import__('os')", (1,)) + bytes(8))

    bad = [objects, huge, too_long, no_npy, nonsense]
    assert_partial(dump, tmp_path / "run.zarr", bad, cluster, tmp_path / "back")
    assert not marker.exists()


@pytest.mark.dask
def test_unreadable_iteration_is_left_for_later(
    dump: Path, cluster: DaskCluster, unprivileged: tuple[str, ...], tmp_path: Path
) -> None:
    """Files of another user: what may be read is committed, and the rest once it may be."""
    store = tmp_path / "run.zarr"
    directory, file = dump / "rank_0/LeNet/0/1", tensor_files(dump, 2)[0]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (directory, file)}
    ingest = ("ingest", dump, "--store", store, "--scheduler", cluster.address, "--json")
    for path in modes:
        path.chmod(0)

    done = run(*ingest, code=4, prefix=unprivileged)

    assert {row["step"] for row in done.json} == {None, 0}
    assert "permission denied" in done.stderr
    assert "setfacl" in done.stderr
    for path, mode in modes.items():
        path.chmod(mode)
    assert {row["step"] for row in run(*ingest).json} == {1, 2}
    checker.check(store, dump)


# From a dump to a store and back, for each kind of dump. `tests/test_store_page.py` rebuilds all.


DUMPS = (
    "dtypes-1rank/dump",
    "lenet-4rank/dump",
    "longnames-1rank/dump",
    "mindspore-2.0.0-cpu-sync/lenet",
    "mindspore-2.7.1-cpu-sync/bfloat16",
    "mindspore-2.7.1-cpu-sync/control-flow",
    "mindspore-2.7.1-cpu-sync/types",
)


#: Those that go by the command and a cluster; the others are taken in within this process.
TYPED = ("dtypes-1rank/dump", "lenet-4rank/dump")


def path_of(name: str, dumps: DumpLibrary) -> Path:
    archive, _, below = name.partition("/")
    return dumps[archive] / below


@pytest.mark.dask
@pytest.mark.parametrize("name", DUMPS)
def test_a_dump_comes_back_byte_for_byte(
    name: str, dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    """What was ingested is whole for a reader of plain Zarr, for `verify`, and for `Step.export`."""
    dump, store, back = path_of(name, dumps), tmp_path / "run.zarr", tmp_path / "back"
    if name in TYPED:
        ingested = run("ingest", dump, "--store", store, "--scheduler", cluster.address, "--json").json
    else:
        ingested = [summary_row(summary) for summary in ingest_directly(dump, store)]

    found = {(leaf.rank, leaf.step) for leaf in checker.check(store, dump)}
    assert found >= set(iterations(dump))
    assert {(row["rank"], row["step"]) for row in ingested} == found
    assert {row["status"] for row in ingested} == {"complete"}

    opened = open_store(store)
    assert list(opened.verify()) == []
    exported = [file for step in opened.select() for file in step.export(back)]
    assert {file.source for file in exported if not file.problem} == files_below(dump).keys()
    assert files_below(back) == files_below(dump)


@pytest.mark.dask
def test_ingesting_again_writes_nothing(dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path) -> None:
    """The store is the truth: what it holds is not even written again with the same bytes."""
    dump, first, second = dumps["lenet-1rank"] / "dump", tmp_path / "first", tmp_path / "second"
    run("ingest", dump, "--store", first, "--scheduler", cluster.address)
    before = checker.versions(first)

    again = run("ingest", dump, "--store", first, "--scheduler", cluster.address, "--json")

    assert again.json == []
    assert checker.versions(first) == before

    # Nor would it matter: keys and bytes below the commits depend on the source alone.
    run("ingest", dump, "--store", second, "--scheduler", cluster.address)
    assert below_the_commits(second) == below_the_commits(first)


def below_the_commits(store: Path) -> dict[str, bytes]:
    return {key: data for key, data in checker.objects(store).items() if key.count("/") > 2}


@pytest.mark.dask
def test_own_workers_do_as_well_as_a_cluster(dumps: DumpLibrary, tmp_path: Path) -> None:
    """Nothing has to run before a first use: the command starts its own workers."""
    dump, store, back = dumps["longnames-1rank"] / "dump", tmp_path / "run.zarr", tmp_path / "back"
    done = run("ingest", dump, "--store", store)
    assert "complete" in done.stdout
    checker.check(store, dump)

    # And what it brought is not exported over anything that is there.
    mine = back / "rank_0/Net/0/1/mapping.csv"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert "--overwrite" in run("export", store, back, "--step", 1, code=2).stderr
    assert mine.read_text() == "mine"


# One iteration of a large real dump, by its profile: bounds on objects, bytes and memory, and every bit.


PROFILE = DATA / "tinybert-large.profile.csv.xz"
#: A worker holds one shard of 128 MiB and some buffers; the plan of the step comes on top.
MAX_GROWTH = 256 * MIB

#: Ingests in a process of its own, and says by how much its peak memory exceeds what the imports need.
#: VmHWM, for what getrusage says begins with the peak of the parent.
_CHILD = """
import re, sys
from pathlib import Path
from bench.stages import Stages, ingest_here

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

before = peak()
ingest_here(Path(sys.argv[1]), Path(sys.argv[2]), Stages())
print(peak() - before)
"""


@dataclass(frozen=True)
class Ingested:
    load: Load
    step: Step
    memory_growth: int

    @property
    def summary(self) -> CommitSummary:
        return self.step.commit.summary


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    directory = tmp_path_factory.mktemp("large")
    load = build(PROFILE, directory / "dump")
    store = directory / "run.zarr"
    command = [sys.executable, "-c", _CHILD, str(load.directory), str(store)]
    child = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return Ingested(load, open_store(str(store)).step(0, 0), int(child.stdout))


@pytest.mark.slow
def test_everything_is_there(profiled: Ingested) -> None:
    assert profiled.summary.status == "complete"
    assert profiled.summary.tensors == profiled.load.files == 5372
    assert profiled.summary.raw_bytes == profiled.load.nbytes


@pytest.mark.slow
def test_objects_are_few(profiled: Ingested) -> None:
    root = Path(profiled.step.objects.address.url)
    written = [path for path in root.rglob("*") if path.is_file()]
    assert len(written) <= 40 + profiled.summary.stored_bytes / (128 * MIB)


@pytest.mark.slow
def test_copies_are_stored_once(profiled: Ingested) -> None:
    assert profiled.summary.tensors - profiled.summary.duplicates == 1449
    assert profiled.summary.stored_bytes <= 0.35 * profiled.summary.raw_bytes


@pytest.mark.slow
def test_memory_is_bounded(profiled: Ingested) -> None:
    assert profiled.memory_growth < MAX_GROWTH


@pytest.mark.slow
def test_every_bit_comes_back(profiled: Ingested) -> None:
    tables = profiled.step.tables
    source, lead, tail = tables.label("source"), tables.label("lead"), tables.label("tail")
    compared = 0
    for row, pieces in profiled.step.payloads(profiled.step.rows(), 16 * MIB):
        expected = (profiled.load.directory / source[row]).read_bytes()
        found = lead[row].encode("latin-1") + b"".join(pieces) + tail[row].encode("latin-1")
        assert found == expected
        compared += 1
    assert compared == profiled.load.files
