"""Names of nodes: any name of a dump is a part of a path."""

from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from ingest.reader.zarr_view.node_names import escape
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.zarr_views import view_of


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_name_is_a_printable_part_of_a_path_of_its_own(name: str, other: str) -> None:
    escaped = escape(name)
    assert escaped.isprintable()
    assert not {"/", "\\"} & set(escaped)
    assert escaped.strip(".")
    assert not escaped.startswith("__")
    assert escaped != "zarr.json"
    assert (escape(other) == escaped) == (other == name)


@pytest.mark.parametrize(
    "name", ["..", "__x", "a/b", "a\\b", "zarr.json", "", "\x1b[31m", "a\u202eb", "c", "%41", " "]
)
def test_names_that_zarr_could_mistake_are_found_again(name: str) -> None:
    memory = MemoryStore()
    group = zarr.open_group(memory, mode="w")
    group.create_array(escape(name), shape=(1,), dtype="i4")
    assert list(group.array_keys()) == [escape(name)]


def test_several_graphs_are_a_level_of_their_own(made: MadeDump, store: Path) -> None:
    for graph in ("0", "1"):
        made.add(np.full(4, int(graph), np.float32), tensor_name("A.a"), graph=graph)
    ingest_directly(made.root, store)
    group = zarr.open_group(view_of(store), path="rank_0/step_0", mode="r")
    assert sorted(group.group_keys()) == ["0", "1"]
    array = group["1/A.a/output.0"]
    assert isinstance(array, zarr.Array)
    assert np.asarray(array[:]).tolist() == [1] * 4


def test_a_loop_gives_each_occurrence_a_name(made: MadeDump, store: Path) -> None:
    for number in range(3):
        made.add(np.full(2, number, np.float32), tensor_name("A.a"))
    ingest_directly(made.root, store)
    group = zarr.open_group(view_of(store), path="rank_0/step_0/A.a", mode="r")
    assert sorted(group.array_keys()) == ["output.0", "output.0#1", "output.0#2"]
    last = group["output.0#2"]
    assert isinstance(last, zarr.Array)
    assert np.asarray(last[:]).tolist() == [2, 2]
