"""Logs without tensors, as their tools wrote them: rows of statistics, in the steps that their lines tell."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from ingest.layouts.detect import find_dump
from ingest.questions.origin import origin
from ingest.questions.trend import trend
from ingest.reader.dump_store import DumpStore, open_store
from tests.dumps import unpack
from tests.pipeline import ingest_directly
from tests.pt_files import pt_bytes
from workers.model import StepKey

LOG = "nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-0.log"
IO = {"activation": "input", "weight": "parameters.weight", "gradient": "backward.input"}
TITAN = """Total captured activations: 2
Excluded ops dispatched: t, view
================================================================================

[layers.0.wq/op_0_mm]
  Shape: torch.Size([8, 256]), Dtype: torch.float32
  L2 norm: 1.500000e+01
  Min: -1.250000e+00
  Max: 2.500000e+00
  Mean: 1.000000e-02
  Output hash: 3.100000e+02
  Input hashes: 1.000000e+00, 2.000000e+00
  Input producers: ;
  Location: common/attention.py:534

[layers.0.wq/op_1_log]
  Shape: torch.Size([8, 256]), Dtype: torch.float32
  L2 norm: nan
  Min: nan
  Max: nan
  Mean: nan
  Output hash: nan
  Input hashes: 3.100000e+02
  Input producers: layers.0.wq/op_0_mm
  Location: common/attention.py:535
  Phase: backward

"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("logs")
    unpack("pt/pytorch-logs", into)
    return into / "pytorch-logs"


@pytest.fixture(scope="module")
def statistics(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> DumpStore:
    into = tmp_path_factory.mktemp("statistics")
    ingest_directly(logs / "nvdlfw-stats" / "dump", into)
    return open_store(into)


def test_each_iteration_is_a_step_with_the_numbers_of_its_lines(logs: Path, statistics: DumpStore) -> None:
    exact = json.loads((logs / "nvdlfw-stats" / "plain" / "values_rank0.json").read_text())
    assert len(exact) == 24
    for told in exact:
        name = f"Module.{told['layer']}.{IO[told['tensor']]}.0"
        (tensor,) = statistics.tensors(rank=0, step=told["iteration"], name=name)
        assert tensor.attributes["tensor"]["decimals"] == 4
        assert tensor.statistics_from == LOG
        for field in ("min", "max", "mean", "std", "l2_norm"):
            value = getattr(tensor.statistics, field)
            if math.isfinite(told[field]):
                assert value == pytest.approx(told[field], rel=1e-15, abs=0.51e-4)
            else:
                assert math.isnan(value)


def test_trend_and_origin_work_on_statistics(statistics: DumpStore) -> None:
    frame = trend(statistics, "*fc1.statistic.input.l1_norm.0", "mean")
    assert frame["step"].tolist() == [0, 1, 2, 3]
    assert frame["value"].tolist()[0] == pytest.approx(81.2144)
    answer = origin(statistics)
    assert answer.step == 3
    assert "fc2.backward.input.0" in json.dumps(answer.to_dict())


def test_statistics_join_the_tensors_of_the_same_tool(tmp_path: Path) -> None:
    """The log and the tensors lie in one directory; the log is rounded, and so agrees with them."""
    values = np.array([1e-6, 0.25, -3.5, 1.0], "f4")
    directory = tmp_path / "dump" / "tensor_dumps" / "rank_0" / "iter_000002"
    directory.mkdir(parents=True)
    (directory / "decoder_0_fc1_activation.pt").write_bytes(pt_bytes(values))
    log = tmp_path / "dump" / LOG
    log.parent.mkdir()
    tabs = "\t\t\t\t"
    log.write_text(
        "".join(
            f"2026-01-01 00:00:00,000 - INFO - decoder.0.fc1_activation_{stat} {tabs} iteration=000002 "
            f"{tabs} value={value:.4f}\n"
            for stat, value in (
                ("min", values.min()),
                ("max", values.max()),
                ("std", values.std(ddof=1)),
                ("fp8_delayed_scaling_underflows%", 25.0),
            )
        )
    )
    ingest_directly(tmp_path / "dump", tmp_path / "store")
    store = open_store(tmp_path / "store")
    (tensor,) = store.tensors(step=2, io="input")
    assert (tensor.is_dumped, tensor.problem, tensor.statistics_from) == (True, "", "computed")
    (share,) = store.tensors(step=2, name="*underflows%*")
    assert share.statistics.mean == 25.0
    log.write_text(log.read_text().replace("-3.5000", "-3.6000"))
    ingest_directly(tmp_path / "dump", tmp_path / "other")
    assert "min: -3.6 is reported" in open_store(tmp_path / "other").tensors(step=2, io="input")[0].problem


def test_a_log_that_goes_on_changes_no_earlier_step(logs: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(logs / "nvdlfw-stats" / "dump", dump)
    lines = (dump / LOG).read_bytes().splitlines(keepends=True)
    (dump / LOG).write_bytes(b"".join(lines[:80]))
    tree = find_dump(dump)
    before = {listing.key: listing for listing in tree.scan({}).listings}
    with (dump / LOG).open("ab") as log:
        log.writelines(lines[80:])
    after = {listing.key: listing for listing in tree.scan(before).listings}
    assert sorted(key.step for key in after if key.step is not None) == [0, 1, 2, 3]
    assert [before[StepKey(0, step)].files == after[StepKey(0, step)].files for step in range(3)] == [
        True,
        True,
        False,
    ]
    assert after[StepKey(0, 1)].later_begun


def test_a_nan_in_a_log_of_torchtitan_is_found_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "dump" / "numerics" / "rank_1_activations.log"
    path.parent.mkdir(parents=True)
    path.write_text(TITAN)
    ingest_directly(tmp_path / "dump", tmp_path / "store")
    store = open_store(tmp_path / "store")
    (output,) = store.tensors(rank=1, step=0, name="aten.mm.layers.0.wq.op_0_mm.output.0")
    assert (output.shape, output.statistics.count, output.statistics.l2_norm) == ((8, 256), 2048, 15.0)
    answer = origin(store)
    text = json.dumps(answer.to_dict())
    assert "layers.0.wq.op_1_log" in text
    assert "common/attention.py" in text
