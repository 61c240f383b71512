"""Programs that differ in what was fused, recomputed, renamed, reordered and left out."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from ingest.questions.compare.alignment import (
    OperatorCall,
    Value,
    align,
    align_sequences,
    classes_of,
    kinds_of,
    only_moves,
    plain_type,
    sources_of,
)
from ingest.questions.compare.matching import MatchedBy
from ingest.questions.compare.result import Why


def value(name: str, size: int = 8) -> Value:
    return Value(size, content=name)


def call(op_type: str, inputs: str, output: str, size: int = 8) -> OperatorCall:
    """Return a call whose values have these contents."""
    return OperatorCall(op_type, tuple(value(name, size) for name in inputs.split()), (value(output, size),))


PLAIN = [
    call("Parameter", "", "w"),
    call("aten.mm", "x w", "m"),
    call("aten.add", "m b", "s"),
    call("aten.relu", "s", "r"),
    call("aten.mm", "r w", "o"),
]

types = st.sampled_from(["aten.mm", "aten.add", "aten.relu", "MyKernel", "aten.view"])
programs = st.lists(
    st.tuples(types, st.integers(0, 6), st.integers(0, 6), st.integers(1, 3)), max_size=14
).map(lambda rows: [call(op, f"v{i}", f"v{o}", size) for op, i, o, size in rows])


def paired(a: list[OperatorCall], b: list[OperatorCall]) -> dict[int, int]:
    return {pair.a: pair.b for pair in align(a, b)[0]}


@given(programs, programs)
def test_each_call_is_in_one_pair_or_one_gap(a: list[OperatorCall], b: list[OperatorCall]) -> None:
    pairs, gaps = align(a, b)
    of_a = [pair.a for pair in pairs] + [gap.number for gap in gaps if gap.side == "A"]
    of_b = [pair.b for pair in pairs] + [gap.number for gap in gaps if gap.side == "B"]
    assert sorted(of_a) == list(range(len(a)))
    assert sorted(of_b) == list(range(len(b)))
    assert all(a[pair.a].result.size == b[pair.b].result.size for pair in pairs)  # type: ignore[union-attr]


@given(programs)
def test_a_program_is_aligned_with_itself(program: list[OperatorCall]) -> None:
    pairs = paired(program, program)
    assert len(pairs) == len(program)
    # Calls that are alike in all respects may change places.
    assert all(program[a] == program[b] for a, b in pairs.items() if program[a].inputs[0].size > 1)


@given(st.permutations(range(12)))
def test_the_order_does_not_matter_where_content_is_known(order: list[int]) -> None:
    program = [call("aten.mm", f"i{number}", f"o{number}") for number in range(12)]
    assert paired(program, [program[place] for place in order]) == {
        place: number for number, place in enumerate(order)
    }


@given(programs, st.integers(0, 13))
def test_a_call_that_is_left_out_is_a_gap(program: list[OperatorCall], place: int) -> None:
    less = program[:place] + program[place + 1 :]
    assert len(paired(program, less)) == len(less)


def test_other_names_are_the_same_call() -> None:
    names = {"aten.mm": "MatMul", "aten.relu": "ReLU"}
    renamed = [replace(known, op_type=names.get(known.op_type, known.op_type)) for known in PLAIN]
    pairs, _ = align(PLAIN, renamed)
    assert pairs == [(n, n, MatchedBy.CONTENT) for n in range(5)]


def test_what_was_fused_is_named() -> None:
    fused = [PLAIN[0], call("MatMulAddReluFusion", "x w b", "r"), PLAIN[4]]
    pairs, gaps = align(fused, PLAIN)
    assert [(pair.a, pair.b) for pair in pairs] == [(0, 0), (1, 3), (2, 4)]
    assert gaps == [("B", 1, Why.FUSED, 1), ("B", 2, Why.FUSED, 1)]


def test_what_is_computed_again_is_named() -> None:
    again = [*PLAIN, call("aten.relu", "s", "r"), call("aten.view", "o", "o")]
    assert align(again, PLAIN)[1] == [("A", 5, Why.RECOMPUTED, 3), ("A", 6, Why.MOVES, None)]


def test_it_goes_on_behind_a_difference() -> None:
    """No content agrees any more: what was read, and what is done, tell which is which."""
    wrong = [
        *PLAIN[:3],
        call("aten.detach", "s", "s"),
        call("Functional.leaky_relu", "s", "r2"),
        call("aten.mm", "r2 w", "o2"),
        call("aten.sum", "o2", "l2"),
    ]
    right = [*PLAIN, call("aten.sum", "o", "l")]
    pairs = {pair.a: (pair.b, pair.because) for pair in align(wrong, right)[0]}
    assert pairs[4] == (3, MatchedBy.PRODUCERS)
    assert pairs[5] == (4, MatchedBy.PRODUCERS)
    assert pairs[6] == (5, MatchedBy.PRODUCERS)


def test_what_is_known_is_kept() -> None:
    assert (1, 4, MatchedBy.EXACT) in align(PLAIN, PLAIN, {1: 4})[0]


NAN = math.nan


def measured(l2: float, low: float, high: float, *, size: int = 9, narrow: bool = False) -> Value:
    return Value(size, None, (NAN, l2, low, high, (low + high) / 2), is_narrow=narrow)


def of_one(value: Value) -> list[OperatorCall]:
    return [OperatorCall("op", (), (value,))]


def are_same(first: Value, second: Value) -> bool:
    classes, _ = classes_of(of_one(first), of_one(second))
    return id(first) in classes and classes[id(first)] == classes.get(id(second))


def test_nearly_equal_marks_are_the_same_value() -> None:
    assert are_same(measured(3.0, -1.0, 2.0), measured(3.0003, -1.0001, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.1, -1.0, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.0, -1.5, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.0, -1.0, 2.0, size=8))
    assert are_same(measured(3.0, -1.0, 2.0, narrow=True), measured(3.01, -1.003, 2.0))


def test_what_is_not_known_is_the_same_as_nothing() -> None:
    assert not are_same(Value(9), Value(9))
    assert Value(9).identity is None
    assert measured(1, 0, 1).identity == measured(1, 0, 1).identity


def test_sources_are_the_latest_writers_before() -> None:
    x, y = Value(4, "x"), Value(4, "y")
    calls = [
        OperatorCall("first", (), (x,)),
        OperatorCall("second", (x,), (y,)),
        OperatorCall("third", (y,), (x,)),
        OperatorCall("reads", (x, y), ()),
        OperatorCall("Parameter", (), (Value(4, "w"),)),
        OperatorCall("late", (Value(4, "w"), Value(4, "unknown")), ()),
    ]
    assert sources_of(calls) == [(), (0,), (1,), (2, 1), (), (4,)]


@pytest.mark.parametrize(
    ("op_type", "kinds"),
    [
        ("MatMulBiasAddReluFusion", {"matmul", "bias", "relu"}),
        ("aten.addmm.out", {"matmul", "bias"}),
        ("Module.Linear", {"matmul", "bias"}),
        ("BiasAdd", {"bias"}),
        ("ReluGrad", {"relu backward"}),
        ("aten.native_layer_norm_backward", {"norm backward"}),
        ("aten.t", {"move"}),
        ("Functional.max_pool2d", {"pool"}),
        ("aten.mul.Tensor", {"mul"}),
        ("MyKernel", {"mykernel"}),
    ],
)
def test_kinds(op_type: str, kinds: set[str]) -> None:
    assert kinds_of(op_type) == kinds


def test_only_what_changes_nothing_moves() -> None:
    assert only_moves("aten.view")
    assert not only_moves("ViewAndAdd")
    assert plain_type("aten::addmm.out") == "addmm"


Scores = npt.NDArray[np.int64]

tables = st_numpy.arrays(
    np.int64,
    st.tuples(st.integers(0, 7), st.integers(0, 7)),
    elements=st.integers(-2, 9),
)


def best_sum(scores: Scores) -> int:
    """Return the largest sum of all alignments, by its definition."""

    @cache
    def best(row: int, column: int) -> int:
        if row == scores.shape[0] or column == scores.shape[1]:
            return 0
        paired = scores[row, column] + best(row + 1, column + 1) if scores[row, column] > 0 else 0
        return max(int(paired), best(row + 1, column), best(row, column + 1))

    return best(0, 0)


def aligned(scores: Scores) -> list[tuple[int, int]]:
    return align_sequences(lambda row: scores[row], *scores.shape)


@given(tables)
def test_no_other_alignment_has_a_larger_sum(scores: Scores) -> None:
    pairs = aligned(scores)
    assert sum(int(scores[pair]) for pair in pairs) == best_sum(scores)
    assert all(scores[pair] > 0 for pair in pairs)
    places_a, places_b = [a for a, _ in pairs], [b for _, b in pairs]
    assert places_a == sorted(set(places_a))
    assert places_b == sorted(set(places_b))


@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_what_is_left_out_of_a_sequence_is_a_gap(text: str, more: str) -> None:
    """All of a sequence is found in one that has other members between."""
    longer = "".join(f"{more[place : place + 1].upper()}{letter}" for place, letter in enumerate(text))
    scores = np.array([[letter == other for other in longer] for letter in text], np.int64)
    pairs = aligned(scores.reshape(len(text), len(longer)))
    assert "".join(longer[b] for _, b in pairs) == text
    assert [a for a, _ in pairs] == list(range(len(text)))
