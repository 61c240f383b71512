"""Comparing stores, ranks, steps and dumps, as they are in real dumps and made by hand."""

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ingest
from ingest.questions.compare import Thresholds, Verdict, compare, load_mapping
from ingest.questions.compare.html import to_html
from ingest.questions.compare.runner import Tasks
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly
from tests.servers.cluster import DaskCluster
from workers.arrays.comparison import METRICS
from workers.errors import UsageError
from workers.model import MIB, StepKey
from workers.store.model import Grid
from workers.tasks import compare as task

A = "Add.net_Add-op0"


@pytest.fixture(scope="module")
def nan_log(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("compare") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"], store)
    return str(store)


def two_ranks(made: MadeDump, store: Path, a: np.ndarray, b: np.ndarray, grid: Grid | None = None) -> str:
    """Return a store with one tensor, which is `a` on rank 0 and `b` on rank 1."""
    for rank, values in enumerate((a, b)):
        made.add(values, tensor_name(A, time=1_795_220_037_870_000), rank=rank)
    ingest_directly(made.root, store, grid)
    return str(store)


def test_two_ranks_of_a_real_run(nan_log: str) -> None:
    found = compare(f"{nan_log}@0,2", f"{nan_log}@1,2")
    assert found.counts == {Verdict.EQUAL: 130, Verdict.DIFFERENT: 113}
    assert (found.verdict, found.is_within) == ("different", False)
    log = next(one for one in found.tensors if one.op_type == "Log" and one.io == "output")
    assert log.metrics is not None
    assert (log.verdict, log.metrics.nan_mismatch) == (Verdict.DIFFERENT, 2)
    values = [
        ingest.open_store(nan_log).tensors(rank, 2, name=log.name)[0].read().astype(float).ravel()
        for rank in (0, 1)
    ]
    keep = ~np.isnan(values[1])
    assert log.metrics.max_abs == pytest.approx(np.abs(values[0] - values[1])[keep].max())
    assert found.worst(1)[0].name == log.name
    assert [one.number for one in found.tensors] == sorted(one.number for one in found.tensors)
    assert found.first is not None
    assert found.first.tensor.number == min(one.number for one in found.tensors)


def test_the_inputs_of_the_first_operator_that_differs_are_told(made: MadeDump, store: Path) -> None:
    for rank in (0, 1):
        made.add(np.ones(3), tensor_name(A, "input", time=1_795_220_037_870_000), rank=rank)
        made.add(np.full(3, rank + 1.0), tensor_name(A, "output", time=1_795_220_037_870_001), rank=rank)
    ingest_directly(made.root, store)
    first = compare(f"{store}@0", f"{store}@1").first
    assert first is not None
    assert (first.tensor.io, first.says) == ("output", "its inputs are equal")
    assert first.to_dict()["inputs"] == [{"name": "Add.net_Add-op0.input.0", "verdict": "equal"}]


@pytest.mark.parametrize(
    "name",
    [
        "nan-log-2rank",
        "dtypes-1rank",
        "mindspore-2.7.1-cpu-sync/types",
        "msprobe-26.2.0-mindspore-cpu",
        "longnames-1rank",
    ],
)
def test_a_store_is_equal_to_the_dump_it_was_made_from(dumps: DumpLibrary, tmp_path: Path, name: str) -> None:
    """Nothing is written into the dump, which is read-only here."""
    corpus, _, part = name.partition("/")
    dump = dumps[corpus] / part
    ingest_directly(dump, tmp_path / "run.zarr")
    for a, b in ((tmp_path / "run.zarr", dump), (dump, tmp_path / "run.zarr")):
        found = compare(a, b, include_partial=True)
        assert set(found.counts) <= {Verdict.EQUAL}
        assert found.verdict == "equal"


def test_layouts_of_accelerators_are_compared_in_the_order_of_the_axes(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    dump = dumps["cann-bin-synthetic"] / "torchair"
    ingest_directly(dump, tmp_path / "host.zarr")
    ingest_directly(dump, tmp_path / "device.zarr", Grid(keep_device_layout=True))
    of_host, of_device, of_dump = tmp_path / "host.zarr", tmp_path / "device.zarr", dump
    for a, b in ((of_host, of_device), (of_device, of_host), (of_host, of_dump), (of_dump, of_device)):
        found = compare(a, b, include_partial=True)
        assert set(found.counts) <= {Verdict.EQUAL}, [one.reason for one in found.tensors]


def test_equal_digests_are_decided_without_reading_a_payload(nan_log: str, tmp_path: Path) -> None:
    bare = tmp_path / "bare.zarr"
    shutil.copytree(nan_log, bare, ignore=shutil.ignore_patterns("tensors"))
    found = compare(bare, nan_log, keep_equal=True)
    assert found.counts == {Verdict.EQUAL: 1458}
    assert {one.basis for one in found.tensors} == {"digest"}


def test_a_whole_run_is_compared_step_by_step(nan_log: str) -> None:
    found = compare(nan_log, nan_log)
    assert [(step.key_a, step.key_b) for step in found.steps] == [
        (StepKey(rank, step), StepKey(rank, step)) for step in (1, 2, 3) for rank in (0, 1)
    ]
    assert (found.verdict, found.first, found.tensors) == ("equal", None, ())


def test_steps_that_only_one_has_are_differences(nan_log: str, tmp_path: Path) -> None:
    shorter = tmp_path / "run.zarr"
    shutil.copytree(nan_log, shorter, ignore=shutil.ignore_patterns("step_3"))
    found = compare(nan_log, shorter)
    assert (found.only_a, found.only_b) == ((StepKey(0, 3), StepKey(1, 3)), ())
    assert (found.verdict, len(found.steps)) == ("different", 4)
    assert compare(nan_log, shorter, ignore_unmatched=True).verdict == "equal"
    assert compare(shorter, nan_log).only_b == (StepKey(0, 3), StepKey(1, 3))
    assert compare(f"{nan_log}@0,2", shorter).verdict == "equal"


def test_stores_and_steps_that_are_open_are_taken_too(nan_log: str) -> None:
    store = ingest.open_store(nan_log)
    assert compare(store, nan_log).verdict == "equal"
    found = compare(store.step(0, 2), store.step(1, 2))
    assert found.notes == ("rank 0 of A is compared with rank 1 of B",)
    assert found.counts[Verdict.DIFFERENT] == 113
    assert compare(store.step(1, 2), nan_log).verdict == "equal"


def test_partial_steps_are_left_out_and_named(made: MadeDump, tmp_path: Path) -> None:
    for step in (0, 1):
        made.add(np.ones(3), tensor_name(A, time=1_795_220_037_870_000), step=step)
    made.add(b"not npy", tensor_name("Bad.op-op1"), step=1)
    ingest_directly(made.root, tmp_path / "run.zarr")
    for a in (tmp_path / "run.zarr", made.root):
        found = compare(a, tmp_path / "run.zarr")
        assert len(found.steps) == 1
        assert {one.key for _, one in found.left_out} == {StepKey(0, 1)}
        whole = compare(a, tmp_path / "run.zarr", include_partial=True)
        assert (len(whole.steps), whole.left_out) == (2, ())
    with pytest.raises(UsageError, match="no complete step"):
        compare(f"{made.root}@step=1", made.root)


def test_a_step_that_is_complete_on_one_side_alone_is_a_difference_and_not_missing(
    made: MadeDump, tmp_path: Path
) -> None:
    for step in (0, 1):
        made.add(np.ones(3), tensor_name(A, time=1_795_220_037_870_000), step=step)
    ingest_directly(made.root, tmp_path / "whole.zarr")
    made.add(b"not npy", tensor_name("Bad.op-op1"), step=1)
    ingest_directly(made.root, tmp_path / "partial.zarr")
    for partial in (tmp_path / "partial.zarr", made.root):
        for a, b in ((partial, tmp_path / "whole.zarr"), (tmp_path / "whole.zarr", partial)):
            found = compare(a, b)
            assert (found.only_a, found.only_b, found.incomplete) == ((), (), 1)
            assert [one.key for _, one in found.left_out] == [StepKey(0, 1)]
            assert found.verdict == "different"
            assert compare(a, b, ignore_unmatched=True).verdict == "equal"


def test_shapes_that_differ_are_said_not_compared(made: MadeDump, store: Path) -> None:
    found = compare(f"{two_ranks(made, store, np.ones((2, 3)), np.ones((3, 2)))}@0", f"{store}@1")
    (one,) = found.tensors
    assert (one.verdict, one.reason, one.metrics) == (Verdict.SHAPE, "2x3 and 3x2", None)
    assert found.first is not None


def test_types_may_differ(made: MadeDump, store: Path) -> None:
    b = np.linspace(0, 1, 50, dtype=np.float32)
    found = compare(f"{two_ranks(made, store, b.astype(ml_dtypes.bfloat16), b)}@0", f"{store}@1")
    (one,) = found.tensors
    assert (one.verdict, one.dtype_a, one.dtype_b) == (Verdict.CLOSE, "bfloat16", "float32")


def test_the_same_bytes_of_another_type_are_not_equal(made: MadeDump, store: Path) -> None:
    ones = np.ones(4, np.float32)
    found = compare(f"{two_ranks(made, store, ones, ones.view(np.int32))}@0", f"{store}@1")
    assert found.counts[Verdict.DIFFERENT] == 1


def test_the_order_of_axes_and_of_bytes_in_memory_is_no_difference(made: MadeDump, store: Path) -> None:
    values = np.arange(12.0).reshape(3, 4)
    found = compare(f"{two_ranks(made, store, np.asfortranarray(values), values)}@0", f"{store}@1")
    assert found.verdict == "equal"
    (one,) = compare(f"{store}@0", f"{store}@1", keep_equal=True).tensors
    assert one.metrics is not None
    assert one.metrics.max_abs == 0


@pytest.mark.parametrize("descr", ["<U3", "|V12", "<M8[s]"])
def test_what_is_no_number_is_compared_by_its_bytes(made: MadeDump, store: Path, descr: str) -> None:
    a = np.frombuffer(np.array(["abc", "def", "ghi", "jkl"]).tobytes(), descr)
    b = a.copy()
    b[1] = a[0]
    found = compare(f"{two_ranks(made, store, a, b)}@0", f"{store}@1")
    (one,) = found.tensors
    assert one.verdict is Verdict.DIFFERENT
    assert one.metrics is not None
    assert (one.metrics.unequal, math.isnan(one.metrics.max_abs)) == (1, True)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_scalars_and_empty_tensors(made: MadeDump, store: Path, shape: tuple[int, ...]) -> None:
    found = compare(f"{two_ranks(made, store, np.zeros(shape), np.zeros(shape) + 1)}@0", f"{store}@1")
    assert found.verdict == ("equal" if 0 in shape else "different")


@pytest.mark.parametrize("dtype", ["f4", ">f4", "f2", "i4", "i8", "?", "c8", "bfloat16"])
def test_pieces_of_a_large_tensor_make_the_same_figures(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    b = (rng.standard_normal(4000) * 10).round(2 if kind.kind in "fc" else 0).astype(kind)
    a = b.copy()
    a[::7] = a[3]
    two_ranks(made, store, a, b, SMALL_GRID)
    (whole,) = compare(f"{store}@0", f"{store}@1").tensors
    monkeypatch.setattr(task, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(task, "_PIECE", 64)
    (pieces,) = compare(f"{store}@0", f"{store}@1").tensors
    (of_dump,) = compare(f"{made.root}@0", f"{store}@1").tensors
    assert whole.metrics is not None
    for found in (pieces, of_dump):
        assert found.metrics is not None
        for name in METRICS:
            assert getattr(found.metrics, name) == pytest.approx(getattr(whole.metrics, name), rel=1e-9), name
    assert compare(f"{made.root}@1", f"{store}@1").verdict == "equal"


_PEAK = """
import sys
from ingest.questions.compare import compare
from workers.arrays import comparison_kernels

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

comparison_kernels.warm_up()
before = peak()
found = compare(sys.argv[1], sys.argv[2])
assert found.tensors[0].metrics.unequal == 1000, found
print((peak() - before) // 1024)
"""


def test_memory_does_not_depend_on_the_size_of_a_tensor(made: MadeDump, store: Path, tmp_path: Path) -> None:
    """Two of 512 MiB take less than one of them; two of 8 GiB have been seen to take as much."""
    nbytes = 512 * MIB
    other = MadeDump(tmp_path / "other")
    for rank, dump in enumerate((made, other)):
        path = dump.add(npy_header("<f4", (nbytes // 4,)), tensor_name(A, time=1_795_220_037_870_000))
        with path.open("r+b") as file:
            header = file.seek(0, 2)
            file.truncate(header + nbytes)
            file.seek(header + nbytes // 2)
            file.write(np.full(1000, 1 + rank, np.float32).tobytes())
    ingest_directly(made.root, store)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(store), str(other.root)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 480


def test_statistics_are_compared_where_only_these_were_dumped(dumps: DumpLibrary, tmp_path: Path) -> None:
    of_probe = dumps["msprobe-26.2.0-pytorch-cpu"]
    ingest_directly(of_probe / "tensor-mix", tmp_path / "run.zarr")
    found = compare(tmp_path / "run.zarr", of_probe / "statistics", keep_equal=True)
    # Where there are infinities, msProbe's numbers are of these, and not comparable with ours.
    assert found.counts == {Verdict.CLOSE: 136, Verdict.UNKNOWN: 2}
    assert {one.op_type for one in found.tensors if one.verdict is Verdict.UNKNOWN} == {"Torch.where"}
    assert all(one.dtype_a == one.dtype_b for one in found.tensors)
    assert {one.basis for one in found.tensors} == {"statistics", ""}
    assert not found.is_within


def test_frameworks_are_compared_by_a_mapping(dumps: DumpLibrary, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(
        r"""pairs:
  - {regex: 'Cell\.Dense\.Cell\.(\w+)\.Dense\.(.*)', b: 'Module.Linear.Module.\1.Linear.\2'}
  - {a: "Nothing.*", b: "Nowhere.*"}
"""
    )
    a, b = dumps["msprobe-26.2.0-mindspore-cpu"], dumps["msprobe-26.2.0-pytorch-cpu"] / "tensor-mix"
    found = compare(a, b, mapping=load_mapping(path))
    matched = [one for one in found.tensors if one.matched]
    assert {one.matched for one in matched} == {"mapping"}
    assert ("Cell.Dense.Cell.fc.Dense.forward.0.parameters.weight.-1") in {one.name_a for one in matched}
    assert found.counts[Verdict.ONLY_A] + len(matched) == 60
    assert "pair 2 of the mapping file fits no tensor of A" in found.notes
    with pytest.raises(UsageError, match="has a counterpart"):
        compare(a, b)


def test_rules_say_what_is_looked_at(made: MadeDump, store: Path) -> None:
    two_ranks(made, store, np.array([1.0, 2.0]), np.array([1.0, 2.1]))
    for limits, verdict in (
        ({"max_abs": 0.2}, Verdict.CLOSE),
        ({"max_abs": 0.01}, Verdict.DIFFERENT),
        ({"ignore": True}, Verdict.IGNORED),
    ):
        thresholds = Thresholds.model_validate({"rules": [{"name": "Add.*", **limits}]})
        found = compare(f"{store}@0", f"{store}@1", thresholds=thresholds)
        assert found.counts[verdict] == 1
        assert found.is_within == (verdict is not Verdict.DIFFERENT)


def test_damage_is_named_and_the_rest_compared(nan_log: str, tmp_path: Path) -> None:
    damaged = tmp_path / "run.zarr"
    shutil.copytree(nan_log, damaged)
    for shard in damaged.glob("rank_1/step_2/*/tensors/float32/c/0"):
        data = bytearray(shard.read_bytes())
        data[40:60] = bytes(20)
        shard.write_bytes(data)
    found = compare(f"{damaged}@0,2", f"{damaged}@1,2")
    assert found.damaged == found.counts[Verdict.UNKNOWN] > 0
    assert found.counts[Verdict.EQUAL] == 130


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("none.zarr", "none.zarr", "does not exist"),
        ("long" * 2000 + "@0", "{store}", "does not exist"),
        ("run\0.zarr@0", "{store}", "does not exist"),
        (__file__, "{store}", "is a file"),
        ("{store}@9", "{store}", "no rank 9"),
        ("{store}@0,9", "{store}", "no step 9"),
        ("{store}@0,1", "{store}@1,9", "no step 9"),
        ("{dump}@7", "{store}", "no such step"),
    ],
)
def test_what_is_not_there_is_a_users_mistake(
    nan_log: str, dumps: DumpLibrary, a: str, b: str, said: str
) -> None:
    a, b = (one.format(store=nan_log, dump=dumps["nan-log-2rank"]) for one in (a, b))
    with pytest.raises(UsageError, match=said):
        compare(a, b)


def test_it_is_a_table_of_pandas(nan_log: str) -> None:
    table = compare(f"{nan_log}@0,2", f"{nan_log}@1,2", keep_equal=True).to_pandas()
    assert len(table) == 243
    assert table.groupby("verdict").size().to_dict() == {"different": 113, "equal": 130}
    assert table["max_abs"].dtype == float


@pytest.fixture
def hostile(made: MadeDump, store: Path) -> Callable[[], str]:
    """A store of two ranks whose only operator has a name that a page would execute."""

    def build() -> str:
        name = tensor_name("Add.<script>alert(1)<!--&quot;'\"--op0", time=1_795_220_037_870_000)
        for rank in (0, 1):
            made.add(np.array([float(rank + 1)]), name, rank=rank)
        ingest_directly(made.root, store)
        return str(store)

    return build


def test_names_are_escaped_on_the_page(hostile: Callable[[], str]) -> None:
    store = hostile()
    page = to_html(compare(f"{store}@0", f"{store}@1"))
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") == 2
    assert page.count("<script>") == 1


def test_a_page_needs_nothing_else_and_begins_with_the_first_difference(nan_log: str) -> None:
    page = to_html(compare(f"{nan_log}@0,2", f"{nan_log}@1,2"))
    assert "http" not in page.replace("http-equiv", "")
    assert page.index("First difference") < page.index("<table")
    assert page.count('<td class="bad">different</td>') == 113
    equal = to_html(compare(nan_log, nan_log))
    assert "First difference" not in equal


@pytest.mark.dask
def test_a_cluster_says_the_same(nan_log: str, cluster: DaskCluster) -> None:
    from distributed import Client

    wanted = compare(f"{nan_log}@0,2", f"{nan_log}@1,2")
    with Client(cluster.address, set_as_default=False) as client:
        assert Tasks(client).parts == 2
        found = compare(f"{nan_log}@0,2", f"{nan_log}@1,2", client=client)
    assert [one.to_dict() for one in found.tensors] == [one.to_dict() for one in wanted.tensors]
