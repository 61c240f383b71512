"""What is bad passes from call to call on one rank."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ingest.questions.origin.calls import Call, CallOperand, RankTrace
from ingest.questions.origin.link import link_calls
from ingest.reader.flow.content import CallKey, Content
from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, NAN, WORSE, Ask, operator, origin_of


def test_update_in_place_may_be_the_first(run: MadeRun, ask: Ask) -> None:
    """The parameter was dumped after the update: it holds NaN as an input, too."""
    run.op("MatMul.first", [CLEAN, GOOD], [CLEAN])
    run.op("ApplyMomentum.opt", [BAD, WORSE, numbers(0.1), CLEAN], [BAD])
    answer = ask()
    assert (*operator(answer), answer.how) == (0, 0, "opt", "born")
    assert any("writes in place" in note for note in answer.notes)


def test_dump_of_outputs_alone(run: MadeRun, ask: Ask) -> None:
    for rank in (0, 1):
        run.op("Log.a", [], [BAD if rank == 1 else GOOD], rank=rank)
        run.op("Neg.b", [], [WORSE if rank == 1 else GOOD], rank=rank)
        run.op("AllReduce.sync", [], [numbers(NAN, 0, 0)], rank=rank)
    answer = ask()
    assert operator(answer) == (1, 0, "a")
    assert any("no inputs were dumped" in note.lower() for note in answer.notes)
    assert [(call.op_name, call.is_assumed) for call in answer.spread.next] == [("b", True), ("sync", True)]
    assert answer.spread.ranks == (0, 1)


def test_module_around_the_operator_is_not_named(dump_copy: Callable[[str], Path], store: Path) -> None:
    """msProbe dumps the cell around an operator with the same output, before or behind it."""
    dump = dump_copy("msprobe-26.2.0-mindspore-cpu")
    born = next(dump.rglob("Primitive.matmul.MatMul.0.forward.output.0.npy"))
    before = np.load(born)
    for path in dump.rglob("*.npy"):
        values = np.load(path)
        if values.tobytes() == before.tobytes():
            values.reshape(-1)[1] = NAN
            np.save(path, values)
    after = next(dump.rglob("Primitive.bias_add.BiasAdd.1.forward.output.0.npy"))
    added = np.load(after)
    for path in dump.rglob("*.npy"):
        values = np.load(path)
        if values.tobytes() == added.tobytes():
            values.reshape(-1)[1] = NAN
            np.save(path, values)
    answer = origin_of(dump, store)
    assert operator(answer) == (0, 0, "Primitive.matmul.MatMul.0.forward")
    assert answer.spread.next[0].op_name == "Primitive.bias_add.BiasAdd.1.forward"
    assert answer.alternatives == ()


def test_an_operator_that_was_dumped_after_its_module_is_inside_it() -> None:
    wide = ("float32", b"4x8")
    module, inner = call("Module.Scores", 2, [], [wide], inputs=1), call("Log", 4, [], [wide], inputs=1)
    flow = link_calls(0, {0: RankTrace(0, 0, (module, inner))})
    assert [edge.source for edge in flow.before[module]] == [inner]


def call(op_type: str, row: int, read: Sequence[Content], written: Sequence[Content], *, inputs: int) -> Call:
    """Return a call whose tensors are NaN all over."""

    def operands(io: str, contents: Sequence[Content]) -> tuple[CallOperand, ...]:
        places = enumerate(contents, row - len(contents) if io == "input" else row)
        return tuple(CallOperand(at, io, 0, (4, 8), content, "NaN", is_plain=True) for at, content in places)

    key = CallKey("", "", op_type, f"at_{row}", 0)
    return Call(0, 0, key, row, inputs, (), operands("input", read), operands("output", written))
