"""The tensor that a pickle of torch describes."""

from tests.pt_files import call, integer, named, text, tuple_of
from workers.dump.formats.pickle_machine import Machine
from workers.dump.formats.pt_tree import FUNCTIONS, Composite


def pickled(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."


def test_subclass_of_a_subclass_is_not_followed_without_end() -> None:
    function = "torch._tensor._rebuild_from_type_v2"
    arguments = tuple_of(integer(0))
    for _ in range(2000):
        arguments = tuple_of(named(function), named("m.C"), arguments, b"N")
    found = Machine(pickled(named(function) + arguments + b"R"), FUNCTIONS).run()
    assert (found.name, found.is_call) == (function, True)


def test_values_are_not_copied_each_time_they_are_collected() -> None:
    values = b"(" + b"N" * 1000 + b"lq\x00"
    again = named("builtins.set") + b"h\x00\x85R"
    first, *others = Machine(pickled(tuple_of(values, again, again)), FUNCTIONS).run()
    assert all(other is first for other in others)


def test_attributes_of_a_subclass_are_not_copied_for_each_tensor() -> None:
    state = b"}" + text("a") + b"Nsq\x00"
    arguments = (named("torch._utils._rebuild_wrapper_subclass"), named("m.C"), b")", b"h\x00")
    again = call("torch._tensor._rebuild_from_type_v2", *arguments)
    first, one, other = Machine(pickled(tuple_of(state, again, again)), FUNCTIONS).run()
    assert one.state is other.state is first
    assert one.unwrapped() == Composite("m.C", {}, {"a": None})
