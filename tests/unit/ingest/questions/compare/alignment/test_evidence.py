"""The points of a pair of calls."""

from ingest.questions.compare.alignment import evidence
from ingest.questions.compare.alignment.calls import OperatorCall, Value
from ingest.questions.compare.alignment.evidence import Evidence


def points(a: OperatorCall, b: OperatorCall) -> int:
    return int(Evidence.of([a], [b]).row(0)[0])


def result(name: str, *, size: int = 8) -> tuple[Value, ...]:
    return (Value(size, name, is_weak=size == 1),)


def test_each_fact_adds_its_points() -> None:
    plain = OperatorCall("MatMul", (), result("x"), "net_fc1")
    alone = evidence.KINDS + evidence.SAME_KINDS + evidence.SAME_LEVEL
    assert points(plain, OperatorCall("MatMul", (), result("y"))) == alone
    assert points(plain, OperatorCall("MatMul", (), result("x"))) == alone + evidence.RESULT
    assert points(plain, OperatorCall("MatMul", (), result("y"), "net_fc1")) == alone + evidence.SCOPE
    assert points(plain, OperatorCall("MatMul", (), result("y"), "other.fc1")) == alone + evidence.WORD
    assert points(plain, OperatorCall("Other", (), result("x"))) == evidence.RESULT + evidence.SAME_LEVEL


def test_what_cannot_be_the_same_has_none() -> None:
    plain = OperatorCall("MatMul", (), result("x"))
    assert points(plain, OperatorCall("MatMul", (), result("y", size=9))) == 0
    assert points(plain, OperatorCall("Other", (), result("y"))) == 0
    assert points(plain, OperatorCall("Parameter", (), result("x"))) == 0
    assert (
        points(
            OperatorCall("MatMul", (), result("x", size=1)), OperatorCall("Other", (), result("x", size=1))
        )
        == 0
    )
