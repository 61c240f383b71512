"""Dumped operators and those of a graph: which is which."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.ir import (
    AMBIGUOUS,
    BY_TYPE,
    EXACT,
    DumpedOp,
    GraphOp,
    OperatorMatch,
    Signature,
    TensorType,
    match_ops,
    parse_ir,
)
from ingest.reader.context.rank_context import parse_order
from tests.dumps import DumpLibrary

_F16, _F32 = ("float16", 6), ("float32", 6)


def _casts(*types: TensorType, first: int = 0) -> list[GraphOp]:
    return [GraphOp(f"D/Cast-op{first + n}", Signature((), (dtype,))) for n, dtype in enumerate(types)]


def _dumped(*ops: tuple[int, int, TensorType]) -> list[DumpedOp]:
    return [DumpedOp(f"D_Cast-op{number}", time, {("output", 0): kind}) for number, time, kind in ops]


def _numbers(matches: dict[str, OperatorMatch]) -> dict[str, str]:
    """Return the numbers of the matches that are one, by those of the files."""
    return {
        name.rpartition("op")[2]: match.name.rpartition("op")[2]
        for name, match in matches.items()
        if match.name
    }


def test_types_tell_which_order_holds() -> None:
    """The numbers follow the program, and the graph the execution, as the files' times do."""
    dumped = _dumped((0, 300, _F32), (1, 100, _F16), (2, 200, _F32))
    assert _numbers(match_ops(dumped, _casts(_F16, _F32, _F32, first=3))) == {"1": "3", "2": "4", "0": "5"}


def test_nothing_is_guessed_between_two_orders() -> None:
    matches = match_ops(_dumped((0, 200, _F32), (1, 100, _F32)), _casts(_F32, _F32, first=2))
    assert matches["D_Cast-op0"] == OperatorMatch(("D/Cast-op2", "D/Cast-op3"), AMBIGUOUS)
    assert matches["D_Cast-op0"].name is None


@given(
    st.lists(st.builds(DumpedOp, st.text("ab/_-op1", max_size=8), st.integers(-1, 5)), max_size=6),
    st.lists(st.builds(GraphOp, st.text("ab/_-op1", max_size=8)), max_size=6),
)
def test_no_operator_of_a_graph_is_given_twice_by_type(dumped: list[DumpedOp], graph: list[GraphOp]) -> None:
    matches = match_ops(dumped, graph)
    given_out = Counter(match.name for match in matches.values() if match.how == BY_TYPE)
    assert all(count == 1 for count in given_out.values())
    assert {name for match in matches.values() for name in match.names} <= {op.name for op in graph}


@pytest.mark.parametrize(
    ("dump", "rank", "found"),
    [
        ("mindspore-2.0.0-cpu-sync", "lenet/rank_0", {EXACT: 16}),
        ("mindspore-2.7.1-cpu-sync", "lenet/rank_0", {EXACT: 19, BY_TYPE: 1}),
        ("mindspore-2.7.1-cpu-sync", "types/rank_0", {EXACT: 5, BY_TYPE: 11}),
        ("lenet-1rank", "dump/rank_0", {EXACT: 42, BY_TYPE: 3}),
        ("nan-log-2rank", "dump/rank_1", {EXACT: 62, BY_TYPE: 2}),
        ("tinybert-2rank", "dump/rank_1", {EXACT: 169, BY_TYPE: 4}),
        # Of three casts to bfloat16 the order is not known.
        ("dtypes-1rank", "dump/rank_0", {EXACT: 4, BY_TYPE: 13, AMBIGUOUS: 3}),
    ],
)
def test_real_operators_are_found(dumps: DumpLibrary, dump: str, rank: str, found: dict[str, int]) -> None:
    dumped, graph = _read(dumps[dump] / rank)
    matches = match_ops(dumped, graph)
    assert Counter(match.how for match in matches.values()) == found
    assert len(matches) == len(dumped)
    # Where the types are known, they agree; this is how wrong orders were noticed.
    signatures = {op.name: op.signature for op in graph}
    for op in dumped:
        signature = signatures[matches[op.name].names[0]]
        assert matches[op.name].how == EXACT or signature is None or signature.allows(op.types)


def _read(rank: Path) -> tuple[list[DumpedOp], list[GraphOp]]:
    """Return the operators of graph 0: those of the first iteration, and those in its execution order."""
    first: dict[str, int] = {}
    types: dict[str, dict[tuple[str, int], TensorType]] = {}
    iteration = min(rank.glob("*/0/[0-9]*"))
    for file in iteration.glob("*.*.*.npy"):  # no file with a number for its name
        op_type, name, _task, _stream, timestamp, io, slot, *rest = file.name.split(".")
        if op_type == "Parameter":
            continue
        first[name] = min(first.get(name, int(timestamp)), int(timestamp))
        kinds = types.setdefault(name, {})
        if len(rest) == 3:  # format, type, npy
            kinds[io, int(slot)] = (rest[1].lower(), _size(file))
    dumped = [DumpedOp(name, time, types[name]) for name, time in first.items()]
    ops = parse_ir([(rank / "graphs" / "ms_output_trace_code_graph_0.ir").read_bytes()]).ops
    order = parse_order((rank / "execution_order" / "ms_execution_order_graph_0.csv").read_bytes())
    return dumped, [GraphOp(name, ops[name].signature) for name in order]


def _size(file: Path) -> int:
    shape = re.search(rb"'shape': \(([\d, ]*)\)", file.read_bytes()[:300])
    assert shape is not None
    return int(np.prod([int(length) for length in shape[1].split(b",") if length.strip()]))
