"""What became of operators that only one of two programs has, in words and as data."""

import pytest

from ingest.questions.compare.programs import OperatorGap, ProgramsBuilder, Why


@pytest.mark.parametrize(
    ("gap", "text"),
    [
        (OperatorGap("A", "Add.a", Why.FUSED, "MatMul.b"), "B does it in MatMul.b, or right before"),
        (OperatorGap("B", "Add.b", Why.FUSED, "MatMul.a"), "A does it in MatMul.a, or right before"),
        (OperatorGap("A", "Tanh.2", Why.RECOMPUTED, "Tanh.1"), "computes Tanh.1 again"),
        (OperatorGap("A", "Reshape.a", Why.MOVES), "passes elements on as they are"),
        (OperatorGap("A", "Module.fc", Why.CONTAINS), "a module: what runs in it is compared"),
        (OperatorGap("A", "Dropout.mask", Why.UNUSED), "nothing reads its output"),
        (OperatorGap("A", "Mul.a", Why.UNKNOWN), ""),
    ],
)
def test_a_gap_says_what_became_of_the_operator(gap: OperatorGap, text: str) -> None:
    assert str(gap) == text


def test_nothing_is_said_where_names_told_all() -> None:
    builder = ProgramsBuilder()
    assert builder.finish() is None
    builder.add((0, 0, 0), [])
    assert builder.finish() is None


def test_the_step_with_most_operators_counts_and_each_gap_is_told_once() -> None:
    fused, other = OperatorGap("A", "Add.a", Why.FUSED, "MatMul.b"), OperatorGap("B", "Mul.b", Why.UNKNOWN)
    builder = ProgramsBuilder()
    builder.add((3, 2, 2), [fused])
    builder.add((36, 16, 15), [fused, other])
    builder.add((1, 1, 1), [])
    programs = builder.finish()
    assert programs is not None
    assert programs.gaps == (fused, other)
    assert str(programs) == (
        "A ran 36 operators, B 16, and 15 are the same; only in A: 1 fused; only in B: 1 other"
    )
    assert programs.to_dict() == {
        "operators_a": 36,
        "operators_b": 16,
        "common": 15,
        "gaps": [
            {
                "side": "A",
                "name": "Add.a",
                "why": "fused",
                "of": "MatMul.b",
                "says": "B does it in MatMul.b, or right before",
            },
            {"side": "B", "name": "Mul.b", "why": "unknown", "of": "", "says": ""},
        ],
    }
