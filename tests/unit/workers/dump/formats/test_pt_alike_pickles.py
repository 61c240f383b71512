"""What is known of a pickle says the same of one that is alike as reading it does."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pt_files import sglang_file
from workers.dump.formats import pt
from workers.dump.formats.assembly import assemble
from workers.dump.formats.pt_alike_pickles import AlikePickles
from workers.dump.formats.pt_pickle import unpickle
from workers.dump.formats.pt_tree import contents
from workers.errors import UnreadableTensor


def attributes_of(code: bytes) -> dict[str, Any]:
    return dict(contents(unpickle(code), len(code)).attributes)


def remembering(*values: Any, protocol: int = 2) -> AlikePickles[str]:
    alike: AlikePickles[str] = AlikePickles()
    for value in values:
        code = pickle.dumps(value, protocol)
        alike.remember(code, "described", attributes_of(code))
    return alike


def found(alike: AlikePickles[str], code: bytes) -> tuple[str, str] | None:
    known = alike.find(code)
    return known and (known.described, known.attributes)


def meta(number: int = 1, name: str = "a", value: object = 0.5) -> dict[str, Any]:
    return {"other": [1, 2], "meta": {"number": number, "name": name, "value": value, "same": 3}}


@pytest.mark.parametrize(
    "value",
    [
        meta(),
        meta(2, "b", 1.5),
        meta(300, "a longer name", float("inf")),
        meta(70_000, 'quotes " and \\, Umlaute ä, \0', float("nan")),
        meta(-1, "", -0.0),
    ],
)
def test_values_that_differ_are_read(value: Any) -> None:
    alike = remembering(meta(), meta(2, "b", 1.5))
    code = pickle.dumps(value, 2)
    assert found(alike, code) == ("described", json.dumps(attributes_of(code)))


def test_pickles_of_protocol_4_are_alike_if_they_have_the_same_length() -> None:
    alike = remembering(meta(), meta(2, "b", 1.5), protocol=4)
    code = pickle.dumps(meta(3, "c", 2.5), 4)
    assert found(alike, code) == ("described", json.dumps(attributes_of(code)))
    assert alike.find(pickle.dumps(meta(3, "longer", 2.5), 4)) is None  # the length stands in the pickle


@pytest.mark.parametrize(
    "value",
    [
        {**meta(), "other": [1, 3]},
        {**meta(), "more": 1},
        meta(value=None),
        meta(2**40),
        {"meta": meta()["meta"]},
    ],
)
def test_other_pickles_are_not_alike(value: Any) -> None:
    alike = remembering(meta(), meta(2, "b", 1.5))
    assert alike.find(pickle.dumps(value, 2)) is None


def test_damaged_pickles_are_not_alike() -> None:
    alike = remembering(meta(), meta(2, "b", 1.5))
    code = pickle.dumps(meta(3, "c", 2.5), 2)
    assert alike.find(code)
    assert not any(alike.find(code[:n]) for n in range(len(code)))
    assert alike.find(code + b".") is None


def test_value_that_is_used_twice_is_no_place() -> None:
    def twice(name: str) -> dict[str, Any]:
        return {"name": name, "again": {"name": name}}

    alike = remembering(twice("a"), twice("b"))
    assert alike.find(pickle.dumps(twice("c"), 2)) is None


def test_values_in_lists_and_instances_are_no_places() -> None:
    alike = remembering({"a": [1]}, {"a": [2]})
    assert alike.find(pickle.dumps({"a": [3]}, 2)) is None


def test_keys_that_read_the_same_are_no_places() -> None:
    alike = remembering({1: 5, "1": 6}, {1: 7, "1": 8})
    assert alike.find(pickle.dumps({1: 9, "1": 10}, 2)) is None


def test_unlike_pickles_are_given_up() -> None:
    alike = remembering(*({"a": number, f"b{number}": 1} for number in range(300)))
    assert alike.find(pickle.dumps({"a": 1, "b": 1}, 2)) is None


def read(content: bytes) -> object:
    return pt.read_headers(lambda offset, nbytes: content[offset : offset + nbytes], len(content))


def read_alone(content: bytes) -> object:
    def part(offset: int, nbytes: int) -> bytes:
        return content[offset : offset + nbytes]

    return assemble(*pt.place_tensors(part, len(content)), part, len(content))


def outcome(function: Callable[[bytes], object], content: bytes) -> object:
    try:
        return function(content)
    except UnreadableTensor as exc:
        return str(exc)


def test_files_of_a_dumper_read_as_they_do_alone() -> None:
    for number in range(200):
        shape = [(4,), (2, 2), (3, 1, 2)][number % 3]
        _, content = sglang_file(np.full(shape, number, "f4"), number)
        assert read(content) == read_alone(content)


ALIKE = [sglang_file(np.full(4, number, "f4"), number)[1] for number in (300, 301, 302)]


@given(st.integers(0, len(ALIKE[2]) - 1), st.integers(0, 255))
def test_damage_is_seen_as_in_a_file_alone(at: int, byte: int) -> None:
    for content in ALIKE[:2]:
        read(content)
    damaged = ALIKE[2][:at] + bytes([byte]) + ALIKE[2][at + 1 :]
    assert outcome(read, damaged) == outcome(read_alone, damaged)
