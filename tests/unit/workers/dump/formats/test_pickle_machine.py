"""A pickle is interpreted and never executed, whatever it asks for."""

import sys
import time
from typing import Any

import pytest

from workers.dump.formats.pickle_machine import Function, Machine, describe_value
from workers.errors import UnreadableTensor

MODULE = "workers.dump.formats.pickle_machine"


def run(code: bytes, functions: dict[str, Function] | None = None) -> Any:
    return Machine(code, functions or {}).run()


def test_key_that_would_take_for_ever_to_hash_is_never_hashed() -> None:
    doubled = b")q\x00" + b"h\x00h\x00\x86q\x00" * 200
    ((key, value),) = run(doubled + b"0}h\x00Ns.").items()
    assert (describe_value(key.value), value) == ("a tuple of 2", None)


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
