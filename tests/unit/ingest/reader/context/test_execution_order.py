"""The execution order and the iterations in which a graph ran."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.execution_order import parse_history, parse_order


def test_execution_order_and_history_are_lists() -> None:
    assert parse_order(b"NodeExecutionOrder-FullNameWithScope\nDefault/a-op0\r\n\nDefault/b-op1") == [
        "Default/a-op0",
        "Default/b-op1",
    ]
    assert parse_order(b"NodeExecutionOrder-FullNameWithScope\n") == []
    assert parse_history(b"0\n0\n2\nx\n3") == [0, 0, 2, 3]


@given(st.binary(max_size=200))
def test_any_bytes_are_an_order_and_a_history(data: bytes) -> None:
    parse_order(data)
    parse_history(data)
