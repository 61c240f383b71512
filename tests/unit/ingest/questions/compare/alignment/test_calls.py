"""Which values of two programs are the same, and who wrote what a call reads."""

import math

from ingest.questions.compare.alignment.calls import Call, Value, classes_of, sources_of

NAN = math.nan


def measured(l2: float, low: float, high: float, *, size: int = 9, narrow: bool = False) -> Value:
    return Value(size, None, (NAN, l2, low, high, (low + high) / 2), is_narrow=narrow)


def of_one(value: Value) -> list[Call]:
    return [Call("op", (), (value,))]


def are_same(first: Value, second: Value) -> bool:
    classes = classes_of(of_one(first), of_one(second))
    return classes.of(first) == classes.of(second) >= 0


def test_nearly_equal_marks_are_the_same_value() -> None:
    assert are_same(measured(3.0, -1.0, 2.0), measured(3.0003, -1.0001, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.1, -1.0, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.0, -1.5, 2.0))
    assert not are_same(measured(3.0, -1.0, 2.0), measured(3.0, -1.0, 2.0, size=8))
    assert are_same(measured(3.0, -1.0, 2.0, narrow=True), measured(3.01, -1.003, 2.0))


def test_what_is_not_known_is_the_same_as_nothing() -> None:
    assert not are_same(Value(9), Value(9))
    assert Value(9).identity is None
    assert measured(1, 0, 1).identity == measured(1, 0, 1).identity


def test_sources_are_the_latest_writers_before() -> None:
    x, y = Value(4, "x"), Value(4, "y")
    calls = [
        Call("first", (), (x,)),
        Call("second", (x,), (y,)),
        Call("third", (y,), (x,)),
        Call("reads", (x, y), ()),
        Call("Parameter", (), (Value(4, "w"),)),
        Call("late", (Value(4, "w"), Value(4, "unknown")), ()),
    ]
    assert sources_of(calls) == [(), (0,), (1,), (2, 1), (), (4,)]
