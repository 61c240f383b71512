"""Tensors in nested values have the way to them as their name; everything else becomes JSON."""

import json
import math
from typing import Any

import pytest

from workers.dump.formats.pickle_machine import Global, Instance, OpaqueKey, Storage
from workers.dump.formats.pt_tree import (
    Composite,
    Contents,
    RebuiltTensor,
    Wrapper,
)
from workers.dump.formats.pt_tree import contents as contents_of_pickle
from workers.errors import UnreadableTensor

A, B = (RebuiltTensor("torch.FloatStorage", key, 6, 0, (2, 3), (3, 1)) for key in "01")


def contents(value: Any) -> Contents:
    return contents_of_pickle(value, pickle_nbytes=100)


def paths(value: Any) -> list[tuple[str, ...]]:
    return [found.path for found in contents(value).tensors]


def test_tensors_under_keys_that_are_objects_are_told_apart() -> None:
    """As those of an optimizer that was saved as an object: its keys are the parameters."""
    keys = [OpaqueKey(Instance("m.Color", (1,))), OpaqueKey(B), OpaqueKey((B,))]
    assert paths({key: {"exp_avg": A} for key in keys}) == [
        ("m.Color 0", "exp_avg"),
        ("tensor 1", "exp_avg"),
        ("a tuple of 1 2", "exp_avg"),
    ]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (2**63, str(2**63)),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (b"abc", "3 bytes"),
        ("x" * 5000, f"{'x' * 4096}... (5000 characters)"),
        (Global("torch.float32"), "torch.float32"),
        (Storage("torch.FloatStorage", "0", 6), "torch.FloatStorage 0 of 6 elements"),
        (1j, "a value of type complex"),
    ],
)
def test_values_are_plain_and_ready_for_json(value: Any, plain: Any) -> None:
    assert contents({"v": value}).attributes == {"v": plain}
    json.dumps(contents({"v": value}).attributes, allow_nan=False)


def test_members_of_a_module_have_the_names_that_users_know() -> None:
    state = {"_parameters": {"weight": A}, "_buffers": {}, "_modules": {}, "_hooks": 1, "training": True}
    module = Instance("torch.nn.Linear", (), state=state)
    found = contents({"layer": module})
    assert paths({"layer": module}) == [("layer", "weight")]
    assert found.attributes == {"layer": {"class": "torch.nn.Linear", "training": True}}
    assert found.foreign == ()


def test_value_that_holds_itself_ends_there() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert contents({"a": loop, "b": loop[:1]}).attributes == {"a": [1, "what holds this"], "b": [1]}
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep]
    with pytest.raises(UnreadableTensor, match="nested more than 64 deep"):
        contents(deep)


def nested(value: Any, references: int, levels: int) -> Any:
    """Return a value that a pickle of a few bytes refers to as often as it likes."""
    for _ in range(levels):
        value = [value] * references
    return value


@pytest.mark.parametrize(
    "value",
    [
        nested(A, 30, 3),
        nested("x" * 4096, 100, 1),
        [{"x" * 10**6: 1}],
        nested({"x" * 5000: A}, 100, 1),
        [Composite("c", {"a": nested(A, 1000, 1)}, {str(n): n for n in range(100)})],
    ],
)
def test_same_values_cannot_be_referred_to_too_often(value: Any) -> None:
    with pytest.raises(UnreadableTensor, match="the same ones too often"):
        contents(value)
    # A pickle that is long enough for that many values may hold them.
    contents_of_pickle(value, pickle_nbytes=10**6)


def test_tensors_in_tensors_end_somewhere() -> None:
    """Each level has the level below twice, as its attributes."""
    composite = Composite("c", {})
    for _ in range(40):
        composite = Composite("c", {}, {"a": composite, "b": composite})
    with pytest.raises(UnreadableTensor, match="the same ones too often"):
        contents(composite)
    for _ in range(3000):
        composite = Composite("c", {}, {"a": composite})
    with pytest.raises(UnreadableTensor, match="nested more than 64 deep"):
        contents(composite)


def test_tensors_in_a_list_of_a_subclass_are_not_lost() -> None:
    value = Wrapper("m.Packed", {"_scale": A, "_parts": [A, B], "_bits": 4})
    found = contents({"w": value})
    assert [member.path for member in found.tensors] == [("w",), ("w", "_parts", "0"), ("w", "_parts", "1")]
    assert [member.attributes for member in found.tensors] == [{"kind": "m.Packed", "_bits": 4}] * 3
