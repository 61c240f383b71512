"""Every dump system there is, with no flag."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from ingest import open_store
from ingest.reader.step import summary_row
from ingest.reader.tensor import Tensor
from tests import checker, dump_data_writer
from tests.cli import run, run_here, start
from tests.servers.cluster import DaskCluster
from tests.stores import DumpLibrary, ingest_directly
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.model import Grid

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
