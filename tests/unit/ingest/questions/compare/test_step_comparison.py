"""One step against another: what digests decide, what elements decide, and what is not compared."""

import math
import re
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from ingest.questions.compare.thresholds import Thresholds
from tests.dumps import DumpLibrary, unpack
from tests.npy_files import MadeDump
from tests.pipeline import SMALL_GRID, ingest_directly
from tests.two_ranks import two_ranks
from workers.arrays.comparison import METRICS
from workers.errors import UsageError
from workers.tasks import compare as task


def test_equal_digests_are_decided_without_reading_a_payload(nan_log: str, tmp_path: Path) -> None:
    bare = tmp_path / "bare.zarr"
    shutil.copytree(nan_log, bare, ignore=shutil.ignore_patterns("tensors"))
    found = compare(bare, nan_log, keep_equal=True)
    assert found.counts == {Verdict.EQUAL: 1458}
    assert {tensor.basis for tensor in found.tensors} == {"digest"}


def test_shapes_that_differ_are_said_not_compared(made: MadeDump, store: Path) -> None:
    found = compare(f"{two_ranks(made, store, np.ones((2, 3)), np.ones((3, 2)))}@0", f"{store}@1")
    (tensor,) = found.tensors
    assert (tensor.verdict, tensor.reason, tensor.metrics) == (Verdict.SHAPE, "2x3 and 3x2", None)
    assert found.first is not None


def test_types_may_differ(made: MadeDump, store: Path) -> None:
    b = np.linspace(0, 1, 50, dtype=np.float32)
    found = compare(f"{two_ranks(made, store, b.astype(ml_dtypes.bfloat16), b)}@0", f"{store}@1")
    (tensor,) = found.tensors
    assert (tensor.verdict, tensor.dtype_a, tensor.dtype_b) == (Verdict.CLOSE, "bfloat16", "float32")


def test_the_same_bytes_of_another_type_are_not_equal(made: MadeDump, store: Path) -> None:
    ones = np.ones(4, np.float32)
    found = compare(f"{two_ranks(made, store, ones, ones.view(np.int32))}@0", f"{store}@1")
    assert found.counts[Verdict.DIFFERENT] == 1


def test_the_order_of_axes_and_of_bytes_in_memory_is_no_difference(made: MadeDump, store: Path) -> None:
    values = np.arange(12.0).reshape(3, 4)
    found = compare(f"{two_ranks(made, store, np.asfortranarray(values), values)}@0", f"{store}@1")
    assert found.verdict == "equal"
    (tensor,) = compare(f"{store}@0", f"{store}@1", keep_equal=True).tensors
    assert tensor.metrics is not None
    assert tensor.metrics.max_abs == 0


@pytest.mark.parametrize("descr", ["<U3", "|V12", "<M8[s]"])
def test_what_is_no_number_is_compared_by_its_bytes(made: MadeDump, store: Path, descr: str) -> None:
    a = np.frombuffer(np.array(["abc", "def", "ghi", "jkl"]).tobytes(), descr)
    b = a.copy()
    b[1] = a[0]
    found = compare(f"{two_ranks(made, store, a, b)}@0", f"{store}@1")
    (tensor,) = found.tensors
    assert tensor.verdict is Verdict.DIFFERENT
    assert tensor.metrics is not None
    assert (tensor.metrics.unequal, math.isnan(tensor.metrics.max_abs)) == (1, True)


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


def test_statistics_are_compared_where_only_these_were_dumped(dumps: DumpLibrary, tmp_path: Path) -> None:
    of_probe = dumps["msprobe-26.2.0-pytorch-cpu"]
    ingest_directly(of_probe / "tensor-mix", tmp_path / "run.zarr")
    found = compare(tmp_path / "run.zarr", of_probe / "statistics", keep_equal=True)
    # Where there are infinities, msProbe's numbers are of these, and not comparable with ours.
    assert found.counts == {Verdict.CLOSE: 136, Verdict.UNKNOWN: 2}
    assert {tensor.op_type for tensor in found.tensors if tensor.verdict is Verdict.UNKNOWN} == {
        "Torch.where"
    }
    assert all(tensor.dtype_a == tensor.dtype_b for tensor in found.tensors)
    assert {tensor.basis for tensor in found.tensors} == {"statistics", ""}
    assert not found.is_within


def test_statistics_that_both_dumps_call_infinite_or_nan_are_alike(tmp_path: Path) -> None:
    """A store of statistics alone does not differ from itself, only from one that says something else."""
    unpack("pt/pytorch-logs", tmp_path)
    dump = tmp_path / "pytorch-logs" / "nvdlfw-stats" / "dump"
    ingest_directly(dump, tmp_path / "a.zarr")
    itself = compare(tmp_path / "a.zarr", tmp_path / "a.zarr", keep_equal=True)
    assert itself.counts == {Verdict.CLOSE: 48}
    assert [tensor.reason for tensor in itself.tensors].count("both dumps say l1_norm inf") == 2
    logs = dump.rglob("nvdlfw_inspect_globalrank-0.log")
    (log,) = (path for path in logs if "inf" in path.read_text())
    log.write_text(re.sub(r"\binf\b", "nan", log.read_text()))
    ingest_directly(dump, tmp_path / "b.zarr")
    assert compare(tmp_path / "a.zarr", tmp_path / "b.zarr").counts[Verdict.UNKNOWN] == 2


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


def test_without_elements_statistics_decide_what_digests_do_not(made: MadeDump, store: Path) -> None:
    values = np.linspace(-1, 1, 50, dtype=np.float32)
    two_ranks(made, store, values, values[::-1].copy())
    swapped = compare(f"{store}@0", f"{store}@1", elements=False)
    (row,) = swapped.tensors
    assert (row.verdict, row.basis, row.metrics) == (Verdict.CLOSE, "statistics", None)
    assert row.reason == "statistics agree; elements were not read"
    assert compare(f"{store}@0", f"{store}@1").counts == {Verdict.DIFFERENT: 1}
    with pytest.raises(UsageError, match="by elements"):
        compare(store, store, elements=False, across_layouts=True)
