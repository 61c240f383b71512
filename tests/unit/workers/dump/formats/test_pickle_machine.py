"""A pickle is interpreted and never executed, whatever it asks for."""

import pickle
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.dump.formats.pickle_machine import Function, Instance, Machine, describe_value
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


def test_key_that_would_take_for_ever_to_hash_is_never_hashed() -> None:
    doubled = b")q\x00" + b"h\x00h\x00\x86q\x00" * 200
    ((key, value),) = run(doubled + b"0}h\x00Ns.").items()
    assert (describe_value(key.value), value) == ("a tuple of 2", None)


def test_only_functions_that_were_given_are_called_and_with_their_arguments() -> None:
    functions = {"m.f": Function(lambda *arguments: arguments, 1, 3)}
    assert run(b"cm\nf\n(K\x01K\x02tR.", functions) == (1, 2, None)
    with pytest.raises(UnreadableTensor, match=r"calls m\.f with 0 arguments"):
        run(b"cm\nf\n(tR.", functions)
    with pytest.raises(UnreadableTensor, match=r"calls m\.f with 4 arguments"):
        run(b"cm\nf\n(K\x01K\x01K\x01K\x01tR.", functions)


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
