"""The tables of a leaf come back as they were, or not at all."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays import statistics
from workers.errors import DamagedStore
from workers.store import tables
from workers.store.tables import LABELS, NUMBERS, Tables

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
