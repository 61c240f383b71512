"""Blocks of torchtitan's logs: one operator each, with what is known of its inputs and its output."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.numerics import read_titan_log
from workers.dump.model import ReportedStatistics


def rows_of(*lines: str, key: str = "layers.0.wq/op_3_mm") -> dict[tuple[str, int], ReportedStatistics]:
    block = "\n".join([f"[{key}]", *(f"  {line}" for line in lines)])
    rows = read_titan_log("log", f"Total captured activations: 1\n{'=' * 80}\n\n{block}\n\n")
    return {(row.name.io, row.name.slot): row for row in rows}


def test_output_has_statistics_and_its_hash_is_a_row() -> None:
    rows = rows_of(
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
    rows = rows_of(
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
    rows = rows_of("Output hash: nan", key="layers.0/op_0_all_gather_into_tensor")
    assert math.isnan(rows["output", 0].statistics.nan_count)


@given(st.text(max_size=60))
def test_any_text_is_read(text: str) -> None:
    list(read_titan_log("log", text))
    list(read_titan_log("log", f"[a/op_0_b]\n  Shape: {text}\n  Output hash: {text}\n  Input hashes: {text}"))
