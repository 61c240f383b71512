"""Names on the axis of tensors occur once, and the axis is read as a whole."""

from pathlib import Path

import pytest

from workers.errors import DamagedStore
from workers.store.consolidated.blocks import TensorKey
from workers.store.consolidated.cubes import CubeGrid, CubeLayouts, read_axis, unique_names
from workers.store.opening import connect, resolve


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
