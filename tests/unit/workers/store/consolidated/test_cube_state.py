"""The state of the cubes: the bytes that are written, and what is damage."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workers.errors import DamagedStore
from workers.store import metadata
from workers.store.consolidated.cubes import CubeGrid, CubeState, parse_state

STATE = CubeState("epoch", 3, 1, (0, 2), CubeGrid(2, 64, 16, 8), 4, 2, 70, "2026-01-02T03:04:05+00:00")


def changed(**fields: Any) -> bytes:
    document = json.loads(metadata.encode(STATE.document()))
    document["attributes"]["dump_ingest"].update(fields)
    return json.dumps(document).encode()


def test_the_state_comes_back() -> None:
    assert parse_state(metadata.encode(STATE.document())) == STATE
    assert parse_state(None) is None


def test_the_cubes_of_another_version_are_none() -> None:
    """They are made again, whatever else is in their metadata."""
    assert parse_state(changed(version=5, grid="another")) is None


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
