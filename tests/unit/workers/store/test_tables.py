"""The tables of a leaf come back as they were, or not at all."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import VLenUTF8, Zstd

from bench.steps import make_tables
from workers.arrays import statistics
from workers.errors import DamagedStore, DumpError
from workers.model import StepKey
from workers.store import tables, untrusted
from workers.store.packed.shards import without_crc32c
from workers.store.tables import (
    LABELS,
    NUMBERS,
    Tables,
    attributes_of,
    disagreeing,
    record_of,
    with_disagreement,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def made(labels: list[str], shapes: list[tuple[int, ...]]) -> Tables:
    rows = len(shapes)
    rng = np.random.default_rng(rows)
    cycle = (labels * (rows * len(LABELS)))[: rows * len(LABELS)]
    return Tables(
        labels=np.array(cycle, object).reshape(rows, len(LABELS)),
        numbers=rng.integers(-(2**63), 2**63 - 1, (rows, len(NUMBERS))),
        shape=tables.shape_table(shapes),
        digest=rng.integers(0, 256, (rows, 16)).astype(np.uint8),
        statistics=rng.normal(size=(rows, len(statistics.FIELDS))),
    )


@given(
    st.lists(texts, min_size=1, max_size=20),
    st.lists(st.lists(st.integers(0, 2**62), max_size=6).map(tuple), min_size=1, max_size=5),
)
def test_tables_come_back(labels: list[str], shapes: list[tuple[int, ...]]) -> None:
    table = made(labels, shapes)
    decoded = tables.decode(*tables.encode(table), "here")
    for name in ("labels", "numbers", "shape", "digest", "statistics"):
        np.testing.assert_array_equal(getattr(decoded, name), getattr(table, name), strict=True)


def test_axes_beyond_the_last_are_marked() -> None:
    assert tables.shape_table([(), (2, 0, 3)]).tolist() == [[-1, -1, -1], [2, 0, 3]]
    assert tables.shape_table([()]).shape == (1, 1)


def flip(data: bytes) -> bytes:
    return data[:10] + bytes([data[10] ^ 1]) + data[11:]


@pytest.mark.parametrize("key", tables.chunk_keys())
@pytest.mark.parametrize("damage", [flip, lambda data: data[:-5], lambda _: b"", lambda data: data + b"\0"])
def test_damaged_table_is_named(key: str, damage: Callable[[bytes], bytes]) -> None:
    """A wrong index would return the bytes of another tensor."""
    documents, chunks = tables.encode(made(["a"], [(1,), (2,)]))
    chunks[key] = damage(chunks[key])
    with pytest.raises(DamagedStore, match=f"here: {key.removesuffix('/c/0/0')}"):
        tables.decode(documents, chunks, "here")


@pytest.mark.parametrize("key", tables.chunk_keys())
def test_missing_table_is_named(key: str) -> None:
    documents, chunks = tables.encode(made(["a"], [(1,)]))
    del chunks[key]
    with pytest.raises(DamagedStore, match=f"here: {key.removesuffix('/c/0/0')} is missing"):
        tables.decode(documents, chunks, "here")


def test_rows_that_disagree_are_known_or_found_in_their_text() -> None:
    """Stores have no column for it."""
    table = made([""], [(1,), (2,), (3,)])
    table.labels[1, LABELS.index("problem")] = with_disagreement("", "s.csv", ["max"])
    assert table.disagreeing.tolist() == [False, True, False]
    known = replace(table, known_disagreeing=np.array([True, False, False]))
    assert known.disagreeing.tolist() == [True, False, False]
    assert tables.decode(*tables.encode(known), "here").disagreeing.tolist() == [False, True, False]


def possible() -> Tables:
    """Return tables that pass every check: a tensor of four elements at the end of its array."""
    table = made([""], [(2, 2)])
    table.numbers[:] = 0
    table.labels[0, LABELS.index("array")] = "tensors/int8"
    for name, value in (("size", 4), ("offset", 6), ("ndim", 2)):
        table.numbers[0, NUMBERS.index(name)] = value
    return table


DOCUMENTS = {"tensors/int8": {"shape": [10]}}


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"size": -1}, "numbers has a negative size"),
        ({"source_offset": -1}, "numbers has a negative source_offset"),
        ({"offset": -2}, "impossible offset"),
        ({"ndim": 3}, "impossible offset or ndim"),
        ({"size": 5}, "elements beyond the end of 'tensors/int8'"),
        ({"offset": 2**62, "size": 2**62}, "elements beyond the end"),
    ],
)
def test_numbers_that_nobody_wrote_are_damage(columns: dict[str, int], what: str) -> None:
    """A reader takes memory for `size` elements, and reads them at `offset`."""
    table = possible()
    for name, value in columns.items():
        table.numbers[0, NUMBERS.index(name)] = value
    with pytest.raises(DamagedStore, match=f"here: index/.*{what}"):
        tables.check(table, DOCUMENTS, "here")


def test_other_values_that_nobody_wrote_are_damage() -> None:
    table = possible()
    table.shape[0, 1] = -1
    with pytest.raises(DamagedStore, match="negative length"):
        tables.check(table, DOCUMENTS, "here")
    table = possible()
    table.labels[0, LABELS.index("lead")] = "\u20ac"
    with pytest.raises(DamagedStore, match="not latin-1 in lead"):
        tables.check(table, DOCUMENTS, "here")
    with pytest.raises(DamagedStore, match="16 columns"):
        tables.check(replace(possible(), digest=np.zeros((1, 8), np.uint8)), DOCUMENTS, "here")


def test_a_step_that_is_kept_without_tensors_needs_no_arrays_of_them() -> None:
    tables.check(possible(), {}, "here", has_tensors=False)
    with pytest.raises(DamagedStore, match="beyond the end"):
        tables.check(possible(), {}, "here")


def test_the_text_is_that_of_earlier_versions() -> None:
    """Stores have it, and rules look for it there."""
    differences = ["max: 3 is reported, 2 computed", "nan_count: 1 is reported, 0 computed"]
    text = "s.csv disagrees: max: 3 is reported, 2 computed, nan_count: 1 is reported, 0 computed"
    assert with_disagreement("", "s.csv", differences) == text
    assert with_disagreement("torn", "s.csv", differences) == f"torn; {text}"


@given(st.lists(st.tuples(st.text(max_size=5), st.booleans()), max_size=8))
def test_labels_with_a_disagreement_are_recognised(rows: list[tuple[str, bool]]) -> None:
    labels = [with_disagreement(text, "s.csv", ["max"]) if differs else text for text, differs in rows]
    column = np.array([*labels, ""], object)
    assert disagreeing(column).tolist() == [*(differs for _, differs in rows), False]


def index_of(*rows: tuple[str, Any]) -> Tables:
    """Return an index of rows with these sources and records."""
    made = make_tables(StepKey(0, 0), [f"Type.name{row}.output.0" for row in range(len(rows))])
    for row, (source, record) in enumerate(rows):
        made.labels[row, LABELS.index("source")] = source
        text = record if isinstance(record, str) else json.dumps(record)
        made.labels[row, LABELS.index("record")] = text
    return made


def test_values_of_the_file_belong_to_each_of_its_tensors() -> None:
    made = index_of(("a.pt", {"file": {"lr": 0.1}}), ("a.pt", ""), ("b.pt", {"file": {"lr": 0.2}}))
    assert [attributes_of(made, row) for row in range(3)] == [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]


def test_what_is_known_of_a_tensor_alone_is_its_own() -> None:
    made = index_of(
        ("a.pt", {"file": {"lr": 0.1}, "tensor": {"kind": "DTensor"}}), ("a.pt", {"path": ["x.y"]})
    )
    assert attributes_of(made, 0) == {"lr": 0.1, "tensor": {"kind": "DTensor"}}
    assert attributes_of(made, 1) == {"lr": 0.1}
    assert record_of(made, 1) == {"path": ["x.y"]}


@pytest.mark.parametrize("record", ["", "{", "[1]", "7", "[" * 100_000, {"file": [1]}])
def test_record_that_is_damaged_has_no_values(record: Any) -> None:
    assert attributes_of(index_of(("a.pt", record)), 0) == {}


def test_a_table_that_no_reader_would_decode_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_TABLE_NBYTES", 100)
    with pytest.raises(DumpError, match="a table of 800 bytes; the limit is 100"):
        tables.encode_table(np.zeros((10, 10)), "float64")


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 100])
def test_texts_are_encoded_as_by_the_codec(rows: int) -> None:
    """However many are encoded at a time, any reader of Zarr can decode them."""
    labels = np.array([f"{row} \x80 ä" * (row % 7) for row in range(3 * rows)], object).reshape(rows, 3)
    encoded = tables.encode_table(labels, "string")
    assert Zstd().decode(without_crc32c(encoded, "here")) == bytes(VLenUTF8().encode(labels.reshape(-1)))
