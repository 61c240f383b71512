"""Entries by columns are the entries."""

import pickle
from pathlib import Path

import pytest

from tests.dumps import DumpLibrary
from tests.pipeline import plan_all
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import TensorHeader
from workers.tasks.columns import EntryColumns, Headers
from workers.tasks.envelopes import Envelope, Envelopes
from workers.tasks.model import Entry


@pytest.fixture(
    params=["lenet-1rank/dump", "cann-bin-synthetic/torchair", "msprobe-26.2.0-pytorch-cpu/tensor-mix"]
)
def entries(request: pytest.FixtureRequest, dumps: DumpLibrary, store: Path) -> tuple[Entry, ...]:
    """The entries of a step: npy, several tensors in a file, and `.pt`."""
    name, _, part = request.param.partition("/")
    return tuple(plan_all(dumps[name] / part, store)[-1].entries)


def test_entries_by_columns_are_the_entries(entries: tuple[Entry, ...]) -> None:
    by_columns = EntryColumns.of(entries)
    assert len(by_columns) == len(entries)
    assert list(by_columns) == list(entries)
    assert [by_columns[0], by_columns[-1]] == [entries[0], entries[-1]]
    assert list(by_columns[1:3]) == list(entries[1:3])
    assert list(by_columns.column("name.op_name")) == [entry.name.op_name for entry in entries]
    assert EntryColumns.of(by_columns) is by_columns
    with pytest.raises(IndexError):
        by_columns[len(entries)]


def test_columns_come_back_from_a_pickle(entries: tuple[Entry, ...]) -> None:
    by_columns = pickle.loads(pickle.dumps(EntryColumns.of(entries)))  # noqa: S301  (its own)
    assert list(by_columns) == list(entries)


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


@pytest.mark.parametrize(
    "texts", [[("", "")], [("", ""), None, ("lead" * 100, "tail"), ("\x80", "\xff"), ("", "\n"), ("é", "")]]
)
def test_texts_come_back_from_a_pickle(texts: list[tuple[str, str] | None]) -> None:
    envelopes = [sides and Envelope(bytearray("".join(sides), "latin-1"), len(sides[0])) for sides in texts]
    held = Envelopes.of(range(10, 10 + len(texts)), envelopes)
    assert held is not None
    expected = {row: sides for row, sides in enumerate(texts, 10) if sides is not None}
    arrived = pickle.loads(pickle.dumps(held))  # noqa: S301  (its own)
    for some in (held, arrived):
        assert dict(some.texts()) == expected
        assert some.rows == tuple(expected)


def test_what_is_alike_is_passed_on_in_few_bytes() -> None:
    held = Envelopes.of(range(1000), [Envelope(bytearray(b"PK" * 1000), 2000)] * 1000)
    assert len(pickle.dumps(held)) < 100_000
