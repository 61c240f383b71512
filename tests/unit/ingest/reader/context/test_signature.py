"""Types of an operator: read by slot, compared where both sides know them."""

import pytest

from ingest.reader.context.signature import Signature, parse_signature


def test_types_are_element_type_and_size() -> None:
    inputs = "<Tensor[Float32], (2, 4)>, <Tensor[Bool], ()>, <Int64, NoShape>"
    line = f"      : ({inputs}) -> (<Tensor[Float16], (8)>)"
    assert parse_signature(line) == Signature(
        (("float32", 8), ("bool", 1), None),
        (("float16", 8),),
    )


@pytest.mark.parametrize("line", ["", "(Tensor) -> (Tensor)", "<Tensor[Float32], (2)>", ") -> ("])
def test_other_lines_have_no_types(line: str) -> None:
    assert parse_signature(line) is None


def test_tuples_have_no_slots() -> None:
    signature = parse_signature(": (<Tuple[Tensor[Float32]*2], ()>) -> (<Tensor[Float32], (2)>)")
    assert signature == Signature((), (("float32", 2),))


@pytest.mark.parametrize(
    ("dumped", "allowed"),
    [
        ({("input", 0): ("float32", 8)}, True),
        ({("input", 0): ("float32", 9)}, False),
        ({("output", 0): ("float32", 8)}, False),
        ({("input", 1): ("int64", 1)}, True),
        ({("input", 7): ("int64", 1)}, True),
        ({}, True),
    ],
)
def test_only_slots_that_both_know_are_compared(
    dumped: dict[tuple[str, int], tuple[str, int]], allowed: bool
) -> None:
    signature = Signature((("float32", 8), None), (("float16", 8),))
    assert signature.allows(dumped) is allowed
