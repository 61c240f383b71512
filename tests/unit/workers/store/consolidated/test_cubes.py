"""Which arrays the cubes are, and how they are cut."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from workers.store.opening import connect, resolve
from workers.store.sketches import HISTOGRAM_TABLE, counted_rows
from workers.store.tables import Tables

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
