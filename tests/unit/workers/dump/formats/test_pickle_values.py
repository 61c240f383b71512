"""Values of the stack machine: what may be a key, and how values are named in errors."""

from typing import Any

import pytest

from workers.dump.formats.pickle_values import Global, Instance, Storage, describe_value, is_key


@pytest.mark.parametrize("value", ["a", 1, -(2**60), 1.5, b"a", True, None, Global("torch.float32")])
def test_simple_values_are_keys(value: Any) -> None:
    assert is_key(value)


@pytest.mark.parametrize(
    "value", [[], {}, (), (1,), 2**61 - 1, -(2**61), Instance("a.B", ()), Storage("s", "0", 1)]
)
def test_what_may_take_for_ever_to_hash_or_compare_is_not_a_key(value: Any) -> None:
    assert not is_key(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Storage("torch.FloatStorage", "0", 1), "a storage"),
        ({"a": 1}, "a dictionary"),
        ((1, 2), "a tuple of 2"),
        ([1], "a list of 1"),
        (Global("a" * 100), "a" * 80),
        (Instance("numpy.dtype", ()), "an instance of numpy.dtype"),
        (1.5, "a value of type float"),
    ],
)
def test_values_are_described_without_their_content(value: Any, text: str) -> None:
    assert describe_value(value) == text


def test_description_of_a_nested_value_is_short() -> None:
    value: tuple[Any, ...] = ()
    for _ in range(100):
        value = (value, value)
    assert describe_value(value) == "a tuple of 2"
