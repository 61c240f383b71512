"""Operators that no system dumps."""

import pytest

from ingest.questions.missing import why_never_dumped


@pytest.mark.parametrize(
    ("op_type", "why"),
    [
        ("While", "control flow"),
        ("Partitioned_Call", "control flow"),
        ("NetOutput", "runs as no task"),
        ("UpdateState", "in the graph alone"),
        ("Reshape", "renames memory"),
        ("ExpandDims", "renames memory"),
    ],
)
def test_the_reason_follows_from_the_type(op_type: str, why: str) -> None:
    assert why in why_never_dumped(op_type)
    assert why_never_dumped(op_type.upper()) == why_never_dumped(op_type)


@pytest.mark.parametrize("op_type", ["MatMul", "", "ReshapeGrad", "WhileLoop", "DataFormatVecPermute"])
def test_nothing_is_said_of_others_with_similar_names(op_type: str) -> None:
    assert why_never_dumped(op_type) == ""
