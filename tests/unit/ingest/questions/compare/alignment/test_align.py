"""Programs that differ in what was fused, recomputed, renamed, reordered and left out."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ingest.questions.compare.alignment.align import align
from ingest.questions.compare.alignment.calls import OperatorCall, Value
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
    return {pair.a: pair.b for pair in align(a, b).pairs}


@given(programs, programs)
def test_each_call_is_in_one_pair_or_one_gap(a: list[OperatorCall], b: list[OperatorCall]) -> None:
    alignment = align(a, b)
    of_a = [pair.a for pair in alignment.pairs] + [gap.number for gap in alignment.gaps if gap.side == "A"]
    of_b = [pair.b for pair in alignment.pairs] + [gap.number for gap in alignment.gaps if gap.side == "B"]
    assert sorted(of_a) == list(range(len(a)))
    assert sorted(of_b) == list(range(len(b)))
    assert all(a[pair.a].result.size == b[pair.b].result.size for pair in alignment.pairs)  # type: ignore[union-attr]


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
    alignment = align(PLAIN, renamed)
    assert [(pair.a, pair.b) for pair in alignment.pairs] == [(n, n) for n in range(5)]
    assert {pair.because for pair in alignment.pairs} == {MatchedBy.CONTENT}


def test_what_was_fused_is_named() -> None:
    fused = [PLAIN[0], call("MatMulAddReluFusion", "x w b", "r"), PLAIN[4]]
    alignment = align(fused, PLAIN)
    assert [(pair.a, pair.b) for pair in alignment.pairs] == [(0, 0), (1, 3), (2, 4)]
    assert [(gap.side, gap.number, gap.why, gap.of) for gap in alignment.gaps] == [
        ("B", 1, Why.FUSED, 1),
        ("B", 2, Why.FUSED, 1),
    ]


def test_what_is_computed_again_is_named() -> None:
    again = [*PLAIN, call("aten.relu", "s", "r"), call("aten.view", "o", "o")]
    gaps = align(again, PLAIN).gaps
    assert [(gap.side, gap.number, gap.why, gap.of) for gap in gaps] == [
        ("A", 5, Why.RECOMPUTED, 3),
        ("A", 6, Why.MOVES, None),
    ]


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
    pairs = {pair.a: (pair.b, pair.because) for pair in align(wrong, right).pairs}
    assert pairs[4] == (3, MatchedBy.PRODUCERS)
    assert pairs[5] == (4, MatchedBy.PRODUCERS)
    assert pairs[6] == (5, MatchedBy.PRODUCERS)


def test_what_is_known_is_kept() -> None:
    pairs = align(PLAIN, PLAIN, {1: 4}).pairs
    assert (1, 4, MatchedBy.EXACT) in [(pair.a, pair.b, pair.because) for pair in pairs]
