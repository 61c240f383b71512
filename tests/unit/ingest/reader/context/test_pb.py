"""Graphs of MindSpore as protobuf: what they say is what the text beside them says."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.files import best_frame
from ingest.reader.context.ir import IrGraph, parse_ir, parse_pb
from tests.dumps import DumpLibrary
from workers.dump.formats.tensor_proto import varint


def both(directory: Path, number: int = 0) -> tuple[IrGraph, IrGraph]:
    stem = directory / "graphs" / f"ms_output_trace_code_graph_{number}"
    return tuple(  # type: ignore[return-value]
        parse([stem.with_suffix(suffix).read_bytes()])
        for parse, suffix in ((parse_ir, ".ir"), (parse_pb, ".pb"))
    )


@pytest.mark.parametrize(
    "place",
    [
        "mindspore-2.0.0-cpu-sync/lenet/rank_0",
        "mindspore-2.7.1-cpu-sync/types/rank_0",
        "nan-log-2rank/dump/rank_1",
        "lenet-1rank/dump/rank_0",
    ],
)
def test_real_graphs_say_the_same_in_both_forms(dumps: DumpLibrary, place: str) -> None:
    name, _, below = place.partition("/")
    text, proto = both(dumps[name] / below)
    assert proto.problems == []
    # The protobuf has no node for the end of the graph.
    assert [op for op in text.ops if "/Return-" not in op] == list(proto.ops)
    for op_name, op in proto.ops.items():
        same = text.ops[op_name]
        assert op.of == same.of
        # A gradient has several candidates, of which the text has one.
        if op.of == "op":
            assert best_frame(op.stack) == best_frame(same.stack)
        # It has edges that the text leaves out with the value of a constant, and types where that has none.
        for source, in_text in zip(op.inputs, same.inputs, strict=False):
            assert in_text in (None, source)
        if same.signature is not None and op.signature is not None:
            for kind, in_text_kind in zip(op.signature.inputs, same.signature.inputs, strict=False):
                assert None in (kind, in_text_kind) or kind == in_text_kind


@given(st.binary(max_size=80))
def test_any_content_is_accepted(content: bytes) -> None:
    assert parse_pb([content]).problems
    parse_pb([b"\x22" + varint(len(content)) + content])
