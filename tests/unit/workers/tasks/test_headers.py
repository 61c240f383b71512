"""Headers that are held together are the headers."""

import pickle

import pytest

from workers.arrays.dtypes import from_name
from workers.dump.formats.header import TensorHeader
from workers.tasks.columns import Headers

SHARED = TensorHeader(from_name("float32"), (2,), offset=128, nbytes=8, lead=b"npy", tail=b"")
LIKE = [SHARED._replace(lead=bytes([number]), tail=b"\xff") for number in range(3)]
OTHER = TensorHeader(from_name("int8"), (), offset=0, nbytes=1, tail=b"tail", io="input")
ROWS = [SHARED, LIKE[0], None, SHARED, LIKE[1], OTHER, LIKE[2], None]


@pytest.mark.parametrize("rows", [ROWS, [None], [SHARED] * 3, LIKE, []])
def test_rows_come_back(rows: list[TensorHeader | None]) -> None:
    held = Headers.of(rows)
    packed = pickle.loads(pickle.dumps(held))  # noqa: S301  (its own)
    for headers in (held, packed):
        assert len(headers) == len(rows)
        assert list(headers) == rows
        assert [headers[row] for row in range(len(rows))] == rows
        assert list(headers[1:4]) == rows[1:4]
    assert Headers.of(held) is held


def test_what_derives_from_headers_that_are_alike_is_computed_once() -> None:
    asked: list[TensorHeader | None] = []
    headers = Headers.of(ROWS)

    def io(header: TensorHeader | None) -> str:
        asked.append(header)
        return header.io if header else "none"

    assert list(headers.column(io)) == ["", "", "none", "", "", "input", "", "none"]
    assert len(asked) == 3
    assert list(headers.leads) == ["npy", "\0", "", "npy", "\1", "", "\2", ""]
    assert list(headers.tails) == ["", "ÿ", "", "", "ÿ", "tail", "ÿ", ""]
    assert headers.alike == [row and row._replace(lead=b"", tail=b"") for row in ROWS]


def test_rows_that_share_a_header_share_it_in_a_worker() -> None:
    """Thousands of npy files have the same one."""
    rows = list(pickle.loads(pickle.dumps(Headers.of([SHARED, OTHER, SHARED]))))  # noqa: S301  (its own)
    assert rows[0] is rows[2]


def test_the_record_is_that_of_the_row() -> None:
    rows = [SHARED._replace(record=f'{{"number": {number}}}', lead=b"%d" % number) for number in range(3)]
    headers = Headers.of(rows)
    assert list(headers) == [row._replace(record="") for row in rows]
    assert headers.alike[0] == headers.alike[1]
