"""Calls that DebugMode logs: their tensors, what they are made of, and where they were called."""

import json
import math
from typing import Any

import pytest

from ingest.layouts.numerics import NotDebugMode, read_log
from workers.dump.model import ReportedStatistics


def scalar(value: Any) -> dict[str, Any]:
    return {"type": "scalar", "value": value}


def call(op: str = "aten::mm", **entry: Any) -> dict[str, Any]:
    hashes = [[name, entry.pop(name)] for name in ("input_hash", "hash") if name in entry]
    return {"type": "op", "call_depth": 2, "op_name": op, "log": {"type": "dict", "items": hashes}, **entry}


def rows_of(*logs: dict[str, Any]) -> dict[str, ReportedStatistics]:
    rows = read_log("x.json", json.dumps({"logs": list(logs)}).encode(), "eager")
    return {f"{row.name.op_name}.{row.name.io}.{row.name.slot}": row for row in rows}


def arguments(*values: Any, **keywords: Any) -> dict[str, Any]:
    positional = {"type": "tuple", "items": [scalar(value) for value in values]}
    named = {"type": "dict", "items": [[name, scalar(value)] for name, value in keywords.items()]}
    return {"type": "tuple", "items": [positional, named]}


def test_tensors_have_types_shapes_and_hashes() -> None:
    rows = rows_of(
        call(
            args_str="t: bf16[2, 3], 0.5, dt: i64[]| R",
            input_hash=arguments(1.5, None, 7),
            output_str="  ->  ('t: f32[4]', 't: f8e4m3fn[0]')",
            hash={"type": "tuple", "items": [scalar("nan"), scalar(0.0)]},
        )
    )
    first, second = rows["op_0_mm.input.0"], rows["op_0_mm.input.1"]
    assert (first.dtype, first.shape, json.loads(first.attributes)["hash"]) == ("bfloat16", (2, 3), "l1:1.5")
    assert (second.dtype, second.shape, json.loads(second.attributes)["hash"]) == ("int64", (), "xor:7")
    assert rows["op_0_mm.output.0"].statistics.nan_count == 1
    assert rows["op_0_mm.output.1"].dtype == "float8_e4m3fn"


def test_numbers_of_tensors_tell_who_wrote_what_was_read() -> None:
    rows = rows_of(
        call(output_str=" -> t$3: f32[2]", hash=scalar(1.0)),
        call("aten::add.Tensor", args_str="t$3: f32[2], 1", input_hash=arguments(1.0, None)),
    )
    assert json.loads(rows["op_1_add.input.0"].attributes)["produced_by"] == "op_0_mm"


@pytest.mark.parametrize(
    ("op", "io"), [("aten::empty_strided", "output"), ("aten::copy_", "input"), ("aten::mm.out", "out")]
)
def test_memory_that_nothing_was_written_to_does_not_count(op: str, io: str) -> None:
    rows = rows_of(
        call(
            op,
            args_str="t: f32[2]",
            input_hash=arguments(1e30, out=1e30),
            output_str=" -> t: f32[2]",
            hash=scalar(INF),
        )
    )
    plain = op.partition("::")[2].partition(".")[0]
    if io == "out":
        assert set(rows) >= {f"op_0_{plain}.input.0"}
        assert f"op_0_{plain}.input.1" not in rows
    else:
        before = rows[f"op_0_{plain}.before.0"]
        assert math.isnan(before.statistics.pos_inf_count)


INF = math.inf


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"logs": 3}', b"[" * 100_000])
def test_other_content_is_refused(content: bytes) -> None:
    with pytest.raises(NotDebugMode):
        list(read_log("x.json", content, ""))
