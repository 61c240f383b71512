"""Graphs of MindSpore as protobuf: what they say is what the text beside them says."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.ir import IrGraph, IrSource, parse_ir
from ingest.reader.context.pb import parse_pb
from ingest.reader.context.stacks import best_frame
from tests.dumps import DumpLibrary
from workers.dump.formats.wire import varint


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


def message(number: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(body)) + body


def node(index: bytes, op_type: bytes, full_name: bytes, *inputs: bytes) -> bytes:
    read = (message(1, message(1, name)) for name in inputs)
    return message(1, *read, message(2, index), message(3, op_type), message(8, full_name))


def test_one_output_of_several_is_told_apart() -> None:
    """Node 3 is output 2 of node 1, and node 4 passes it on."""
    graph = message(
        4,
        node(b"1", b"LayerNorm", b"Default/LayerNorm-op0", b"x"),
        node(b"2", b"TupleGetItem", b"Default/TupleGetItem-op0", b"1", b"cst1"),
        node(b"3", b"Depend", b"Default/Depend-op0", b"2", b"1"),
        node(b"4", b"ReLU", b"Default/ReLU-op0", b"3", b"nothing"),
        message(3, message(1, b"x")),
        message(5, message(1, b"cst1"), message(2, b"\x18\x02")),
    )
    ops = parse_pb([graph[:9], graph[9:]]).ops
    assert ops["Default/LayerNorm-op0"].inputs == (IrSource("x", -1),)
    assert ops["Default/ReLU-op0"].inputs == (IrSource("Default/LayerNorm-op0", 2), None)


@pytest.mark.parametrize(
    ("lengths", "kind"),
    [
        ([2, 3], ("float32", 6)),
        ([], ("float32", 1)),
        ([2, 2**64 - 1], None),  # -1: the length is known only when the graph runs
        ([2**63 - 1] * 65, None),
        ([2**63 - 1] * 100_000, None),  # the product would take minutes
    ],
)
def test_type_is_that_of_an_array_or_not_known(lengths: list[int], kind: tuple[str, int] | None) -> None:
    axes = [message(1, b"\x08" + varint(length)) for length in lengths]
    tensor = message(2, b"\x08\x0b", message(2, *axes))
    op = message(1, message(2, b"1"), message(6, b"\x08\x0e", tensor), message(8, b"Default/Add-op0"))
    signature = parse_pb([message(4, op)]).ops["Default/Add-op0"].signature
    assert signature is not None
    assert signature.outputs == (kind,)


def test_memory_is_not_that_of_a_list_of_all_fields() -> None:
    """A field of two bytes took two hundred."""
    graph = message(4, b"\x38\x00" * 50_000)
    tracemalloc.start()
    parse_pb([graph])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


@given(st.binary(max_size=80))
def test_any_content_is_accepted(content: bytes) -> None:
    assert parse_pb([content]).problems
    parse_pb([b"\x22" + varint(len(content)) + content])
