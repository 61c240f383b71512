"""What is kept of a commit is the commit, byte for byte; and what commits have in common is kept once."""

from collections.abc import Callable
from copy import deepcopy

import pytest

from tests.made_steps import made_commit
from workers.model import StepKey
from workers.store.commit import encode_leaf
from workers.store.record import CompactLeaf, Nodes, decode_nodes

NAME = "ab12cd34" * 4


def leaf(name: str = NAME, step: int = 8, rows: int = 3) -> bytes:
    record = made_commit(StepKey(0, step), name).record.to_dict()
    labels = {"shape": [rows, 19], "attributes": {"of": name}}
    return encode_leaf(record, name, {"": {"shape": []}, "index/labels": labels})


@pytest.mark.parametrize(
    "data",
    [
        leaf(),
        b" " + leaf() + b"\n\n",
        leaf().replace(b'"consolidated_metadata"', b'"consolidated\\u005fmetadata"'),
        leaf().replace(b'"kind"', b'"ki\0nd"'),
        leaf().replace(NAME.encode(), b"x"),
        b"",
    ],
)
def test_what_was_packed_comes_back(data: bytes) -> None:
    """A later version may write other bytes, and damage may be anything."""
    assert CompactLeaf.of(data, NAME).data == data


def test_equal_content_is_equal_and_other_content_is_not() -> None:
    """Writers compare what they have read with what is there now."""
    assert CompactLeaf.of(leaf(), NAME) == CompactLeaf.of(leaf(), NAME)
    assert CompactLeaf.of(leaf(), NAME) != CompactLeaf.of(leaf(rows=4), NAME)
    assert CompactLeaf.of(leaf(), NAME) != CompactLeaf.of(leaf(step=9), NAME)
    assert CompactLeaf.of(leaf(), NAME) != CompactLeaf.of(leaf("f" * 32), "f" * 32)


def test_steps_with_equal_nodes_share_them() -> None:
    """Another generation has the same nodes under another name; a run has thousands of them."""
    one, other = CompactLeaf.of(leaf(), NAME), CompactLeaf.of(leaf("f" * 32, step=9), "f" * 32)
    assert one.packed_nodes is other.packed_nodes
    assert one.packed_nodes is not CompactLeaf.of(leaf(rows=4), NAME).packed_nodes


@pytest.mark.parametrize("send", [lambda nodes: nodes, deepcopy])
def test_nodes_are_those_of_their_own_generation(send: Callable[[Nodes], Nodes]) -> None:
    """Steps that share the packed form do not share names, nor does a copy, as tasks take it."""
    for name in (NAME, "f" * 32):
        nodes = send(Nodes(CompactLeaf.of(leaf(name), name)))
        assert dict(nodes) == decode_nodes(leaf(name))
        assert nodes["index/labels"]["attributes"] == {"of": name}
        assert len(nodes) == 2
