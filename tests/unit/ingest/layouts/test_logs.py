"""Logs without tensors: rows of statistics, in the steps that their lines tell."""

import json
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.detect import find_dump
from ingest.layouts.numerics import (
    TE_LINE,
    Precision,
    number_row,
    read_te_lines,
    read_titan_log,
    reported,
    statistics_of,
)
from ingest.layouts.tree import LogSections, read_section
from ingest.questions.origin import origin
from ingest.questions.trend import trend
from ingest.reader.dump_store import DumpStore, open_store
from tests.pt_files import pt_bytes
from tests.stores import ingest_and_open, ingest_directly, unpack
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import StepKey

# Logs without tensors, as their tools wrote them: rows of statistics, in the steps that their lines tell.


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
    return ingest_and_open(logs / "nvdlfw-stats" / "dump", into)


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
    store = ingest_and_open(tmp_path / "dump", tmp_path / "store")
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
    store = ingest_and_open(tmp_path / "dump", tmp_path / "store")
    (output,) = store.tensors(rank=1, step=0, name="aten.mm.layers.0.wq.op_0_mm.output.0")
    assert (output.shape, output.statistics.count, output.statistics.l2_norm) == ((8, 256), 2048, 15.0)
    answer = origin(store)
    text = json.dumps(answer.to_dict())
    assert "layers.0.wq.op_1_log" in text
    assert "common/attention.py" in text


# Logs of many steps: each step has its lines, also while the log grows.


def line(step: int, text: str = "a_weight_max", second: int = 0) -> bytes:
    stamp = f"2026-01-01 00:00:{second:02},000"
    return f"{stamp} - INFO - {text} \t\t iteration={step:06} \t\t value=1.0\n".encode()


def texts(log: LogSections, path: Path) -> dict[int, bytes | None]:
    return {step: read_section(path, section, 1 << 20) for step, section in log.update(path).items()}


@given(st.lists(st.none() | st.integers(0, 3), max_size=12), st.integers(1, 400))
def test_lines_are_those_of_their_steps_however_the_log_grows(steps: list[int | None], cut: int) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"sections-{os.getpid()}.log"  # noqa: S108
    lines = [b"a warning\n" if step is None else line(step) for step in steps]
    content = b"head\n" + b"".join(lines)
    expected: dict[int, bytes] = {}
    last = None
    for step, text in zip(steps, lines, strict=True):
        last = last if step is None else step
        if last is not None:
            expected[last] = expected.get(last, b"") + text
    log = LogSections(TE_LINE)
    try:
        for end in (*range(0, len(content), cut), len(content)):
            path.write_bytes(content[:end])
            read = texts(log, path)
        assert read == expected
        # Also after a restart, or each of these steps would be ingested once more.
        assert log.update(path) == LogSections(TE_LINE).update(path)
    finally:
        path.unlink()


def test_only_the_last_step_is_unfinished_and_only_new_lines_change_a_section(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line(0) + line(1))
    log = LogSections(TE_LINE)
    before = log.update(path)
    with path.open("ab") as file:
        file.write(line(2))
    after = log.update(path)
    assert [section.is_last for section in before.values()] == [False, True]
    assert [section.is_last for section in after.values()] == [False, False, True]
    assert (after[0], after[1].ranges, after[1].changed_ns) == (
        before[0],
        before[1].ranges,
        before[1].changed_ns,
    )


def test_log_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line(0) + line(1))
    log = LogSections(TE_LINE)
    first = log.update(path)
    path.write_bytes(line(0, "b_weight_max") + line(1) + line(2))
    second = log.update(path)
    assert set(second) == {0, 1, 2}
    assert second[0].nbytes == first[0].nbytes
    assert second[0].changed_ns != first[0].changed_ns


def test_what_cannot_be_read_has_no_sections(tmp_path: Path) -> None:
    log = LogSections(TE_LINE)
    assert log.update(tmp_path / "none") == {}
    assert log.update(tmp_path) == {}
    os.mkfifo(tmp_path / "fifo")
    assert log.update(tmp_path / "fifo") == {}
    (tmp_path / "log").write_bytes(line(0))
    (section,) = log.update(tmp_path / "log").values()
    assert read_section(tmp_path / "log", section, section.nbytes - 1) is None
    assert read_section(tmp_path / "none", section, 1000) is None


# What statistics by torch's definitions say about elements, and what they do not.


NAN, INF = math.nan, math.inf
NAME = TensorName(op_type="Module", op_name="fc", io="input", slot=0)


@pytest.mark.parametrize(
    ("low", "high", "counts"),
    [
        (-1.0, 2.0, (0, 0, 0)),
        (NAN, NAN, (1, NAN, NAN)),
        (-1.0, INF, (0, 1, 0)),
        (-INF, INF, (0, 1, 1)),
        (-INF, 2.0, (0, 0, 1)),
    ],
)
def test_extremes_tell_what_is_not_finite(low: float, high: float, counts: tuple[float, ...]) -> None:
    logged = statistics_of({"min": low, "max": high}, [], (2,))
    assert (logged.nan_count, logged.pos_inf_count, logged.neg_inf_count) == pytest.approx(
        counts, nan_ok=True
    )
    assert logged.min == pytest.approx(low if math.isfinite(low) else NAN, nan_ok=True)
    assert logged.max == pytest.approx(high if math.isfinite(high) else NAN, nan_ok=True)


@pytest.mark.parametrize(
    ("norms", "counts"),
    [([1.5], (0, 0, 0)), ([NAN], (1, NAN, NAN)), ([INF], (NAN, 1, NAN)), ([1.5, NAN], (1, NAN, NAN))],
)
def test_norms_tell_what_is_not_finite(norms: list[float], counts: tuple[float, ...]) -> None:
    logged = statistics_of({}, norms, None)
    assert (logged.nan_count, logged.pos_inf_count, logged.neg_inf_count) == pytest.approx(
        counts, nan_ok=True
    )
    assert math.isnan(logged.count)


def test_other_statistics_are_rows_of_their_own() -> None:
    numbers = {"max": 2.0, "underflows%": 12.5, "l1_norm": INF}
    tensor, share, norm = reported("log", Precision(decimals=4), NAME, numbers, tensor="x.pt")
    assert (tensor.name, tensor.tensor, tensor.decimals) == (NAME, "x.pt", 4)
    assert json.loads(tensor.attributes) == {"decimals": 4, "not_finite": {"l1_norm": "inf"}}
    assert (share.name.io, share.statistics.mean, share.statistics.count) == (
        "statistic.input.underflows%",
        12.5,
        1,
    )
    # Of what is not finite, its tensor tells: this row is not one more with an Inf.
    assert all(math.isnan(value) for value in norm.statistics.as_row())
    assert json.loads(norm.attributes)["value"] == "inf"
    assert number_row("log", NAME, -2.0, Precision()).statistics.l2_norm == 2


# Lines of nvdlfw-inspect: layers, tensors and statistics are told apart by the names of tensors.


def rows_of(*numbers: tuple[str, str]) -> list[ReportedStatistics]:
    lines = "".join(
        f"2026-01-01 00:00:00,000 - INFO - {name} \t\t\t\t iteration=000003 \t\t\t\t value={value}\n"
        for name, value in numbers
    )
    return list(read_te_lines("log", lines.encode(), "tensor_dumps/rank_0/iter_000003"))


@pytest.mark.parametrize(
    ("name", "op_name", "io", "statistic"),
    [
        ("decoder.0.fc1_activation_max", "decoder.0.fc1", "input", "max"),
        ("output_layer_output_min", "output_layer", "output", "min"),
        ("a_weight_b_gradient_mean", "a_weight_b.backward", "input", "mean"),
        ("fc_wgrad_std", "fc.backward", "parameters_grad.weight", "std"),
    ],
)
def test_names(name: str, op_name: str, io: str, statistic: str) -> None:
    (row,) = rows_of((name, "1.5000"))
    assert (row.name.op_name, row.name.io, getattr(row.statistics, statistic)) == (op_name, io, 1.5)


@pytest.mark.parametrize(
    "statistic",
    [
        "fp8_delayed_scaling_underflows%",
        "mxfp8_scale_inv_min_columnwise",
        "max_blockwise_dynamic_range_block_size_32_dims_1",
        "nvfp4_mse",
    ],
)
def test_statistics_of_recipes_keep_their_names(statistic: str) -> None:
    tensor, share = rows_of((f"fc_weight_{statistic}", "0.2500"))
    assert (tensor.name.io, share.name.io) == (
        "parameters.weight",
        f"statistic.parameters.weight.{statistic}",
    )
    assert share.statistics.mean == 0.25


def test_line_with_an_endless_name_is_passed_over_at_once() -> None:
    """The time would grow with the square of its length: hours for four megabytes."""
    begun = time.process_time()
    assert rows_of(("a_weight_" * 20_000 + "/", "1.0000")) == []
    assert time.process_time() - begun < 1


def test_tensors_are_found_where_the_same_tool_saves_them() -> None:
    (row,) = rows_of(("decoder.0/fc 1_activation_max", "1.0000"))
    assert row.tensor == "tensor_dumps/rank_0/iter_000003/decoder_0_fc_1_activation.pt"


# Blocks of torchtitan's logs: one operator each, with what is known of its inputs and its output.


def rows_of_titan(*lines: str, key: str = "layers.0.wq/op_3_mm") -> dict[tuple[str, int], ReportedStatistics]:
    block = "\n".join([f"[{key}]", *(f"  {line}" for line in lines)])
    rows = read_titan_log("log", f"Total captured activations: 1\n{'=' * 80}\n\n{block}\n\n".encode())
    return {(row.name.io, row.name.slot): row for row in rows}


def test_output_has_statistics_and_its_hash_is_a_row() -> None:
    rows = rows_of_titan(
        "Shape: torch.Size([2, 3]), Dtype: torch.bfloat16",
        "Min: -1.0e+00",
        "Max: 2.0e+00",
        "Output hash: 4.5e+00",
    )
    output = rows["output", 0]
    assert (output.name.op_type, output.name.op_name) == ("aten.mm", "layers.0.wq.op_3_mm")
    assert (output.shape, output.dtype, output.statistics.count) == ((2, 3), "torch.bfloat16", 6)
    assert (output.statistics.min, output.statistics.nan_count, output.digits) == (-1.0, 0, 7)
    assert rows["statistic.output.l1_norm", 0].statistics.mean == 4.5


def test_inputs_have_hashes_and_writers() -> None:
    rows = rows_of_titan(
        "Input hashes: 1.0e+00, nan, 77",
        "Input producers: a/op_0_add;;<none>/op_1_mul",
        "Location: x/y.py:12",
    )
    assert set(rows) == {("input", 0), ("input", 1), ("input", 2)}
    told = [json.loads(rows["input", slot].attributes) for slot in range(3)]
    assert [each["hash"] for each in told] == ["l1:1.0e+00", "l1:nan", "xor:77"]
    assert [each.get("produced_by") for each in told] == ["a.op_0_add", None, "op_1_mul"]
    assert told[0]["location"] == {"file": "x/y.py", "line": 12}
    assert rows["input", 1].statistics.nan_count == 1
    assert math.isnan(rows["input", 2].statistics.nan_count)  # a hash of bits says nothing


def test_hashes_of_a_collective_say_nothing() -> None:
    rows = rows_of_titan("Output hash: nan", key="layers.0/op_0_all_gather_into_tensor")
    assert math.isnan(rows["output", 0].statistics.nan_count)


@given(st.text(max_size=60))
def test_any_text_is_read(text: str) -> None:
    block = f"[a/op_0_b]\n  Shape: {text}\n  Output hash: {text}\n  Input hashes: {text}"
    for each in (text, block):
        list(read_titan_log("log", each.encode(errors="surrogatepass")))
