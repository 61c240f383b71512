"""Values are looked into as far as is useful, and no further."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from ingest.recording.hooks import io_and_slot, tensors_in


class Two(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    number: Any
    name: str = "x"


@pytest.mark.parametrize(
    ("value", "ways"),
    [
        (1.0, [()]),
        ([1.0, (2.0, "text")], [("0",), ("1", "0")]),
        (OrderedDict(a=1.0, b=None), [("a",)]),
        (UserDict({"a": 1.0}), [("a",)]),
        (Two(1.0, [2.0]), [("first",), ("second", "0")]),
        (Record(1.0), [("number",)]),
        (Record, []),
        ({3: 1.0, "k" * 200: 2.0}, [("3",), ("k" * 80,)]),
        (object(), []),
    ],
)
def test_each_tensor_has_the_way_that_leads_to_it(value: Any, ways: list[tuple[str, ...]]) -> None:
    assert [way for way, _ in tensors_in(value, float)] == ways


def test_what_contains_itself_ends() -> None:
    value: list[Any] = [1.0]
    value.append(value)
    assert len(list(tensors_in(value, float))) == 8
    assert len(list(tensors_in([1.0] * 5000, float))) == 4096


def test_numbers_are_slots_and_names_are_labels() -> None:
    assert io_and_slot("input", ("1",)) == ("input", 1)
    assert io_and_slot("output", ("a", "2")) == ("output.a", 2)
    assert io_and_slot("output", ("1" * 30,)) == (f"output.{'1' * 30}", 0)
