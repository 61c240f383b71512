"""Cubes in a store."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace

from bench.steps import make_tables
from workers.arrays.statistics import FIELDS, summarise
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import metadata
from workers.store.consolidated.blocks import TensorKey
from workers.store.consolidated.cubes import (
    CubeGrid,
    CubeLayouts,
    CubeState,
    parse_state,
    read_axis,
    sketched_rows,
    unique_names,
)
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.opening import connect, resolve
from workers.store.sketches import HISTOGRAM_TABLE, counted_rows
from workers.store.tables import Tables

# Which arrays the cubes are, and how they are cut.


STATE = CubeState("epoch", 3, 1, (0, 2), CubeGrid(2, 64, 16, 8), 4, 2, 70, "2026-01-02T03:04:05+00:00")


def changed(**fields: Any) -> bytes:
    document = json.loads(metadata.encode(STATE.document()))
    document["attributes"]["dump_ingest"].update(fields)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"epoch": 5}, r"\$\.epoch"),
        ({"steps": -1}, r"\$\.steps"),
        ({"steps": True}, r"\$\.steps"),
        ({"tensors": 2**24 + 1}, r"\$\.tensors"),
        ({"revision": "1"}, r"\$\.revision"),
        ({"rewriting": [-1]}, r"\$\.rewriting\[0\]"),
        ({"grid": {"ranks": 2, "tensors": 64, "inner_tensors": 16}}, r"`steps` - at `\$\.grid`"),
        ({"grid": {"ranks": 0, "tensors": 64, "inner_tensors": 16, "steps": 8}}, r"\$\.grid\.ranks"),
        ({"more": 1}, "unknown field `more`"),
        ({"version": None}, "version"),
    ],
)
def test_a_wrong_field_is_damage_and_its_place_is_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(DamagedStore, match=rf"consolidated/zarr\.json is damaged: .*{place}") as raised:
        parse_state(changed(**fields))
    assert "--rebuild" in raised.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        {"rewriting": [4]},
        {"uncut": [0]},
        {"steps": 2**14, "ranks": 2**13, "rewriting": []},
        {"grid": {"ranks": 256, "tensors": 8192, "inner_tensors": 512, "steps": 17}},
        {"grid": {"ranks": 2, "tensors": 64, "inner_tensors": 15, "steps": 8}},
    ],
)
def test_lengths_that_do_not_fit_each_other_are_damage(fields: dict[str, Any]) -> None:
    """Readers take memory for them."""
    with pytest.raises(DamagedStore, match="impossible lengths"):
        parse_state(changed(**fields))


@given(st.integers(0, 20_000), st.integers(0, 400_000))
def test_a_grid_for_a_run_of_any_size_can_be_read_back(ranks: int, tensors: int) -> None:
    grid = CubeGrid.for_size(ranks, tensors)
    state = replace(STATE, grid=grid)
    assert grid.is_possible
    assert parse_state(metadata.encode(state.document())) == state
    assert grid.ranks * grid.tensors * grid.steps * 8 <= 2**27
    # One tensor over all steps decodes little, and the index of a chunk is short.
    assert grid.ranks * grid.inner_by_tensor * grid.steps * 8 <= 2**19
    assert grid.tensors % grid.inner_by_tensor == 0
    assert grid.tensors // grid.inner_by_tensor * 16 <= 2**14


#: 3 elements in (2, 4], -1 in (0.5, 1].
VALUES = np.array([3, 3.5, 4, -1, 0], "<f4")
BINS = [[1, 3, 0], [-1, 0, 1]]


@pytest.fixture
def index() -> Tables:
    """Tables of tensors that all hold `VALUES`."""
    made = make_tables(StepKey(0, 0), ["a", "b"], (), 0)
    statistics = summarise(VALUES)
    made.statistics[:] = [getattr(statistics, name) for name in FIELDS]
    return made


def entries_of(rows: dict[int, list[list[int]]]) -> np.ndarray:
    return HISTOGRAM_TABLE.gathered(list(rows), [*map(len, rows.values())], [*map(np.array, rows.values())])


def test_a_histogram_that_contradicts_the_statistics_counts_as_missing(index: Tables) -> None:
    counted = counted_rows(index)
    wrong = [[[1, 2, 0], [-1, 0, 1]], [[999, 3, 1]], [[1, 3, -1]]]
    for bins in wrong:
        rows = dict.fromkeys(counted, BINS) | {counted[0]: bins}
        sketched = sketched_rows(index, entries_of(rows))
        assert sketched.without == 1
        assert sketched.rows.tolist() == counted[1:]
    assert sketched_rows(index, HISTOGRAM_TABLE.empty()).without == len(counted)


def key(name: str, graph: str = "0", net: str = "Net", copy: int = 0) -> TensorKey:
    return TensorKey(net, graph, "MatMul", name, "output", 0, 0, copy)


def test_a_name_is_as_short_as_it_can_be_and_occurs_once() -> None:
    taken: set[str] = set()
    keys = [
        key("a"),
        key("a", graph="1"),
        key("a", graph="1", net="Other"),
        key("a", copy=1),
        key("a", net="N2"),
    ]
    short = "MatMul.a.output.0"
    names = unique_names(keys, taken)
    assert names == [short, f"1/{short}", f"Other/1/{short}", f"{short}~1", f"0/{short}"]
    assert taken == set(names)
    assert unique_names([key("a", net="N2", graph="0")], taken) == [f"N2/0/{short}"]
    (last,) = unique_names([key("a", net="N2", graph="0")], taken)
    assert last == f"N2/0/{short}~6"


def test_the_axis_of_tensors_is_read_or_what_is_missing_is_named(tmp_path: Path) -> None:
    objects = connect(resolve(tmp_path))
    layouts = CubeLayouts(CubeGrid(2, 64, 16, 8))
    with pytest.raises(DamagedStore, match="consolidated/net/c/0: missing"):
        read_axis(objects, layouts, 3)
    assert len(read_axis(objects, layouts, 0)) == 0


# Chunks of N-dimensional arrays: what is written is what zarr-python reads, and damage is named.


PLAIN = ArrayLayout("plain", "int64", ("a", "b"), (3, 4), -1)
SHARDED = ArrayLayout("sharded", "float64", ("a", "b", "c"), (1, 3, 8), float("nan"), 2, 2)
TEXT = ArrayLayout("text", "string", ("a",), (5,), "")


@given(values=hnp.arrays(np.int64, (5, 7)))
def test_a_plain_array_comes_back_chunk_by_chunk(values: np.ndarray[Any, Any]) -> None:
    for index, key in PLAIN.keys(values.shape).items():
        part = values[index[0] * 3 : index[0] * 3 + 3, index[1] * 4 : index[1] * 4 + 4]
        decoded = PLAIN.decode(PLAIN.encode(part), key)
        np.testing.assert_array_equal(decoded[: part.shape[0], : part.shape[1]], part)
        assert (decoded[part.shape[0] :] == -1).all()


@given(values=hnp.arrays(np.float64, (1, 3, 8)))
def test_a_sharded_array_comes_back_bit_for_bit(values: np.ndarray[Any, Any]) -> None:
    assert SHARDED.decode(SHARDED.encode(values), "here").tobytes() == values.tobytes()


@given(values=hnp.arrays(np.float64, (1, 3, 8), elements=st.sampled_from([0.0, 1.0])))
def test_the_inner_chunks_of_an_object_are_its_parts(values: np.ndarray[Any, Any]) -> None:
    """Equal ones in a row are decoded once."""
    parts = list(SHARDED.inner_parts(SHARDED.encode(values), "here"))
    np.testing.assert_array_equal(np.concatenate(parts, axis=2), values)
    for before, part in pairwise(parts):
        assert (part is before) == np.array_equal(part, before)
    (only,) = PLAIN.inner_parts(PLAIN.encode(PLAIN.full()), "here")
    np.testing.assert_array_equal(only, PLAIN.full())


@pytest.mark.parametrize(
    ("layout", "shape"),
    [(PLAIN, (5, 7)), (SHARDED, (4, 5, 11)), (TEXT, (7,))],
    ids=lambda value: str(value)[:20],
)
def test_zarr_python_reads_what_is_written(
    layout: ArrayLayout, shape: tuple[int, ...], tmp_path: Path
) -> None:
    values: np.ndarray[Any, Any] = np.arange(np.prod(shape)).reshape(shape).astype(layout.dtype)
    if layout.data_type == "string":
        values = np.array([f"name {i} é" for i in range(shape[0])], object)
    for index, key in layout.keys(shape).items():
        place = tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, layout.chunk, strict=True))
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(layout.encode(values[place]))
    (tmp_path / layout.path / "zarr.json").write_text(json.dumps(layout.document(shape)))

    array: Any = zarr.open_array(tmp_path / layout.path, mode="r")

    assert array[:].tolist() == values.tolist()
    assert array.metadata.dimension_names == layout.dimensions


@pytest.mark.parametrize("layout", [PLAIN, SHARDED, TEXT], ids=lambda layout: layout.path)
@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_changed_byte_is_damage_and_the_object_is_named(layout: ArrayLayout, place: int) -> None:
    data = bytearray(layout.encode(layout.full()))
    data[place] ^= 1
    with pytest.raises(DamagedStore, match="c/0"):
        layout.decode(bytes(data), "c/0")


@pytest.mark.parametrize("layout", [PLAIN, SHARDED, TEXT], ids=lambda layout: layout.path)
def test_an_object_that_was_cut_is_damage(layout: ArrayLayout) -> None:
    data = layout.encode(layout.full())
    for length in range(len(data)):
        with pytest.raises(DamagedStore):
            layout.decode(data[:length], "c/0")


def test_a_chunk_of_another_size_is_damage_before_it_is_decompressed() -> None:
    larger = ArrayLayout("plain", "int64", ("a", "b"), (3, 4096), -1)
    with pytest.raises(DamagedStore, match="98304 bytes"):
        PLAIN.decode(larger.encode(larger.full()), "c/0")
