"""The tables of a leaf come back as they were, or not at all."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays import statistics
from workers.errors import DamagedStore
from workers.store import tables
from workers.store.tables import LABELS, NUMBERS, Tables, with_disagreement

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


def test_one_row_alone_is_row_0() -> None:
    table = replace(made(["a", "b"], [(1,), (2, 3)]), known_disagreeing=np.array([False, True]))
    row = table.only(1)
    assert row.labels.tolist() == [table.labels[1].tolist()]
    assert row.shape.tolist() == [[2, 3]]
    assert row.disagreeing.tolist() == [True]
    assert len(row.numbers) == len(row.digest) == len(row.statistics) == 1
    assert replace(table, known_disagreeing=None).only(0).known_disagreeing is None


def possible() -> Tables:
    """Return tables that pass every check: a tensor of four elements at the end of its array."""
    table = made([""], [(2, 2)])
    table.numbers[:] = 0
    table.labels[0, LABELS.index("array")] = "tensors/int8"
    for name, value in (("size", 4), ("offset", 6), ("ndim", 2)):
        table.numbers[0, NUMBERS.index(name)] = value
    return table


DOCUMENTS = {"tensors/int8": {"shape": [10]}}


def test_possible_tables_pass() -> None:
    table = possible()
    assert tables.check(table, DOCUMENTS, "here") is table


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
