"""The latest earlier call with the same bits wrote a tensor."""

from dataclasses import dataclass

from ingest.reader.step_flow import latest_writer


@dataclass(frozen=True)
class Call:
    op_type: str


@dataclass(frozen=True)
class Output:
    row: int
    shape: tuple[int, ...] = (2,)


READER, READ = Call("Reader"), Output(10)
EARLY, LATE, BEHIND = (Call("Mul"), Output(1)), (Call("Add"), Output(5)), (Call("Sub"), Output(20))


def test_the_latest_before_the_reader_is_taken() -> None:
    assert latest_writer(READER, READ, [EARLY, LATE, BEHIND], ordered=True) == LATE
    assert latest_writer(READER, READ, [EARLY, LATE, BEHIND], ordered=False) == BEHIND
    assert latest_writer(READER, READ, [BEHIND], ordered=True) is None
    assert latest_writer(READER, READ, [], ordered=False) is None


def test_a_writer_of_the_same_shape_is_preferred_and_a_container_is_not() -> None:
    reshaped = (Call("Reshape"), Output(8, (1, 2)))
    assert latest_writer(READER, READ, [EARLY, reshaped], ordered=True) == EARLY
    module = (Call("Module.Linear"), Output(9))
    assert latest_writer(READER, READ, [reshaped, module], ordered=True) == reshaped
    assert latest_writer(READER, READ, [module], ordered=True) == module
