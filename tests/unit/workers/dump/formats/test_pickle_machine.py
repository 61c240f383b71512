"""A pickle is interpreted and never executed, whatever it asks for."""

import pickle
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.dump.formats.pickle_machine import Function, Global, Instance, Machine, Storage, describe_value
from workers.errors import UnreadableTensor

MODULE = "workers.dump.formats.pickle_machine"
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    lambda below: (
        st.tuples(below)
        | st.tuples(below, below, below, below)
        | st.lists(below, max_size=4)
        | st.dictionaries(st.text("ab") | st.integers(-(2**60), 2**60), below)
    ),
    max_leaves=8,
)


def run(code: bytes, functions: dict[str, Function] | None = None) -> Any:
    return Machine(code, functions or {}).run()


@given(values, st.integers(2, 5))
def test_plain_values_come_out_as_pickle_has_them(value: Any, protocol: int) -> None:
    assert run(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_that_a_file_names_is_called(protocol: int) -> None:
    """Not even what would do no harm: what it names becomes a value that says so."""
    for harmless in (complex(1, 2), range(3)):
        found = run(pickle.dumps(harmless, protocol))
        assert isinstance(found, Instance)
        assert found.name.endswith((".complex", ".range", ".xrange"))
    found = run(b"cos\nsystem\n(X\x04\x00\x00\x00truetR.")
    assert (found.name, found.arguments, found.is_call) == ("os.system", ("true",), True)


def test_instances_keep_arguments_state_and_items() -> None:
    found = run(b"cm\nC\n(K\x01t\x81}X\x01\x00\x00\x00aK\x02sb(K\x03eX\x01\x00\x00\x00kK\x04s.")
    assert (found.name, found.arguments, found.state) == ("m.C", (1,), {"a": 2})
    assert (found.items, found.mapping, found.is_call) == ([3], {"k": 4}, False)


def test_key_that_would_take_for_ever_to_hash_is_never_hashed() -> None:
    doubled = b")q\x00" + b"h\x00h\x00\x86q\x00" * 200
    ((key, value),) = run(doubled + b"0}h\x00Ns.").items()
    assert (describe_value(key.value), value) == ("a tuple of 2", None)


def test_object_as_a_key_equals_no_other_key() -> None:
    """As an enumeration or a parameter is one: the values under such keys are all there."""
    found = run(b"}(cm\nE\nK\x01\x85RK\x05cm\nE\nK\x01\x85RK\x06u.")
    assert [(key.value.name, key.value.arguments) for key in found] == [("m.E", (1,))] * 2
    assert list(found.values()) == [5, 6]


def test_only_functions_that_were_given_are_called_and_with_their_arguments() -> None:
    functions = {"m.f": Function(lambda *arguments: arguments, 1, 3)}
    assert run(b"cm\nf\n(K\x01K\x02tR.", functions) == (1, 2, None)
    with pytest.raises(UnreadableTensor, match=r"calls m\.f with 0 arguments"):
        run(b"cm\nf\n(tR.", functions)
    with pytest.raises(UnreadableTensor, match=r"calls m\.f with 4 arguments"):
        run(b"cm\nf\n(K\x01K\x01K\x01K\x01tR.", functions)


def test_class_of_a_module_may_come_with_its_source() -> None:
    """So the format before torch 1.6 saves a whole module."""
    text = b"X\x01\x00\x00\x00"
    module = b"(X\x06\x00\x00\x00modulecm\nNet\n" + text + b"f" + text + b"stQ."
    assert run(module) == Global("m.Net")


def test_storage_is_what_a_persistent_id_refers_to() -> None:
    text = b"X\x01\x00\x00\x00"
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + text + b"0" + text + b"c" + b"K\x05tQ."
    assert run(storage) == Storage("torch.FloatStorage", "0", 5)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"", "ends in the middle of an instruction, at byte 0"),
        (b".", "needs a value from an empty stack"),
        (b"t.", "lacks a mark"),
        (b"h\x07.", "lacks the value 7"),
        (b"K\x01K\x02a.", "appends to a value of type int"),
        (b"\xff.", "instruction 0xff at byte 0"),
        (b"c" + b"m" * 300 + b"\nf\n.", "a name of 300 characters"),
    ],
)
def test_damage_and_foreign_values_are_named(code: bytes, message: str) -> None:
    with pytest.raises(UnreadableTensor, match=message):
        run(code)


def test_description_of_a_value_is_short_whatever_it_holds() -> None:
    """The text of this one would have 2**200 characters."""
    value: tuple[Any, ...] = ()
    for _ in range(200):
        value = (value, value)
    assert describe_value(value) == "a tuple of 2"
    assert describe_value({}) == "a dictionary"
    assert describe_value([1]) == "a list of 1"
    assert describe_value("x") == "a value of type str"
    assert sys.getrecursionlimit() > 200


def test_instructions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may make a value: 32 MiB of them took 2.3 GB."""
    monkeypatch.setattr(f"{MODULE}._MAX_INSTRUCTIONS", 100)
    assert len(run(b"(" + b"]" * 97 + b"t.")) == 97
    with pytest.raises(UnreadableTensor, match="more than 100 instructions"):
        run(b"(" + b"]" * 98 + b"t.")


def test_integers_of_the_same_hash_are_not_compared() -> None:
    """A dictionary compares each of them with all others: those of 30 MB took hours."""
    keys = [n * sys.hash_info.modulus for n in range(1, 50_001)]
    items = b"".join(b"\x8a\x0c" + key.to_bytes(12, "little") + b"N" for key in keys)
    begun = time.process_time()
    found = run(b"}(" + items + b"u.")
    assert [key.value for key in found] == keys
    assert time.process_time() - begun < 1


def test_text_is_encoded_once() -> None:
    """As `pickle` does it for bytes. A file of 32 MiB could otherwise ask for any amount of memory."""
    functions = {"m.f": Function(lambda text: text.encode(), 1, 1)}
    text = b"X" + (1000).to_bytes(4, "little") + b"a" * 1000 + b"q\x00"
    assert run(b"cm\nf\n" + text + b"\x85R.", functions) == b"a" * 1000
    with pytest.raises(UnreadableTensor, match="encodes the same text again and again"):
        run(text + b"0cm\nf\nh\x00\x85R" * 2 + b".", functions)


def test_integer_without_bound_is_a_text() -> None:
    assert run(b"\x8a\x20" + bytes(32) + b".") == "an integer of 32 bytes"
