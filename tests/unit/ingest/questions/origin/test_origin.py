"""Where NaN and infinity were born, and where they went."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest import open_store
from ingest.questions.origin.answer import OriginAnswer, OriginTensor
from ingest.questions.origin.calls import bad_numbers
from ingest.questions.origin.roots import Suspects
from ingest.reader.snapshot import Snapshot, take_snapshot
from tests.cli import strict_json
from tests.damages import flip, only
from tests.origin_runs import BAD, CLEAN, GOOD, INF, MASKED, NAN, WORSE, Ask, operator, origin_of
from tests.stores import DumpLibrary, MadeDump, MadeRun, Values, ingest_directly, numbers
from workers.arrays.statistics import FIELDS, Statistics
from workers.errors import UsageError
from workers.model import StepKey

# The first operator that gave NaN or Inf, by the order in which operators ran, and why it did.


def first_by_files(dump: Path, rank: int, step: int) -> str | None:
    """Return the first operator of a rank with NaN or Inf in an output and in no input; from the files."""
    calls: dict[str, dict[str, list[Path]]] = {}
    files = [path for path in dump.glob(f"rank_{rank}/*/*/{step}/*.npy") if path.name[:9] != "Parameter"]
    for path in sorted(files, key=lambda path: int(path.name.split(".")[4])):
        op_type, name, *_, io, _slot, _format, _dtype, _npy = path.name.split(".")
        calls.setdefault(f"{op_type}.{name}", {"input": [], "output": []})[io].append(path)
    for name, call in calls.items():
        wrong = {
            io: any(not np.isfinite(np.load(path).astype("f8")).all() for path in paths)
            for io, paths in call.items()
        }
        if wrong["output"] and not wrong["input"]:
            return name.partition(".")[2]
    return None


def test_log_of_a_negative_number_stays_in_the_loss_of_its_rank(dumps: DumpLibrary, store: Path) -> None:
    """The files are the truth: NaN is on rank 1 only, in steps 2 and 3."""
    dump = dumps["nan-log-2rank"]
    truth = json.loads((dump / "truth.json").read_text())["files"]
    holding = {path.split("/")[0] for path, counts in truth.items() if counts["nan"]}
    answer = origin_of(dump / "dump", store)
    assert operator(answer) == (1, 2, first_by_files(dump / "dump", 1, 2))
    assert (answer.op_type, answer.graph, answer.what, answer.how) == ("Log", "0", "NaN", "born")
    assert answer.source is not None
    assert answer.source.code == "return -(self.log(self.sig(self.net(x)) + shift)).mean()"
    assert [tensor.statistics.nan_count for tensor in (*answer.inputs, *answer.outputs)] == [0, 2]
    assert [call.op_type for call in answer.spread.next] == ["ReduceMean", "Neg"]
    assert {f"rank_{rank}" for rank in answer.spread.ranks} == holding == {"rank_1"}
    assert answer.spread.collectives == ()
    later = answer.spread.steps
    assert [(later.step, later.ranks, later.through) for later in later] == [(3, (1,), ())]
    assert later[0].born_again == ("Log.Default_net-LogLoss_Log-op0",)
    assert answer.alternatives == ()


def test_sqrt_of_a_negative_number_comes_to_all_weights_through_all_reduce(
    dumps: DumpLibrary, store: Path
) -> None:
    dump = dumps["nan-sqrt-2rank"] / "dump"
    answer = origin_of(dump, store)
    assert operator(answer) == (1, 2, first_by_files(dump, 1, 2))
    assert answer.op_type == "Sqrt"
    assert answer.spread.ranks == (0, 1)
    assert {(collective.from_ranks, collective.to_ranks) for collective in answer.spread.collectives} == {
        ((1,), (0,))
    }
    assert {collective.op_name for collective in answer.spread.collectives} == {
        f"Default_AllReduce-op{number}" for number in range(6)
    }
    assert not any(collective.is_assumed for collective in answer.spread.collectives)
    assert [(later.step, later.ranks) for later in answer.spread.steps] == [(3, (0, 1))]
    assert {"net_l3_weight", "net_l3_bias"} <= set(answer.spread.steps[0].through)
    assert answer.alternatives == ()


def test_infinity_comes_before_the_nan_that_it_becomes(dumps: DumpLibrary, store: Path) -> None:
    """`d * d` overflows; so do gradients, which do not follow from the loss, and are said beside it."""
    dump = dumps["inf-explode-1rank"] / "dump"
    answer = origin_of(dump, store)
    assert operator(answer) == (0, 2, first_by_files(dump, 0, 2))
    assert (answer.op_type, answer.what, answer.cause) == ("Mul", "+Inf", "inf")
    assert answer.alternatives[0].op_type == "MatMul"
    assert answer.spread.steps[0].step == 3
    assert "net_l3_weight" in answer.spread.steps[0].through
    nan = ingest.origin(open_store(store), cause="nan")
    assert (nan.op_type, nan.what) == ("MatMul", "NaN")


def test_mask_is_harmless_until_it_covers_a_row(dumps: DumpLibrary, store: Path) -> None:
    dump = dumps["nan-mask-1rank"] / "dump"
    answer = origin_of(dump, store)
    assert operator(answer) == (0, 3, "Default_network-Attn_Sub-op1")
    assert (answer.graph, answer.what) == ("1", "NaN")
    assert "taken for a mask" in answer.notes[0]
    assert any("Harmless" in note and "inputs1" in note for note in answer.notes)
    ordinary = ingest.origin(open_store(store), step=[1, 2])
    assert not ordinary.found
    assert any("Harmless" in note for note in ordinary.notes)


@pytest.mark.parametrize("name", ["lenet-4rank", "tinybert-2rank", "mindspore-2.0.0-cpu-sync"])
def test_where_nothing_is_wrong_it_says_so(name: str, dumps: DumpLibrary, store: Path) -> None:
    dump = next(path.parent for path in sorted(dumps[name].glob("*/rank_0")))
    answer = origin_of(dump, store)
    assert not answer.found
    assert answer.to_dict()["rank"] is None
    assert answer.to_dict()["alternatives"] == []
    keys = "rank step graph op_type op_name source inputs outputs spread alternatives"
    assert set(keys.split()) <= answer.to_dict().keys()


@pytest.mark.parametrize("part", ["stats", "tf", "torchair", "mindspore_acl"])
def test_dumps_of_cann_get_an_answer(part: str, dumps: DumpLibrary, store: Path) -> None:
    answer = origin_of(dumps["cann-bin-synthetic"] / part, store, include_partial=True)
    assert answer.to_dict()


def test_infinity_that_went_nowhere_gives_way_to_what_matters(run: MadeRun, ask: Ask) -> None:
    run.op("Exp.a", [CLEAN], [numbers(INF, 1, 2)])
    run.op("Reciprocal.b", [numbers(INF, 1, 2)], [GOOD])
    alone = ask(step=0)
    assert (operator(alone), alone.what) == ((0, 0, "a"), "+Inf")
    assert any("went nowhere" in note for note in alone.notes)
    run.op("Log.c", [CLEAN], [BAD], step=1)
    answer = ask()
    assert operator(answer) == (0, 1, "c")
    assert any("+Inf born in Exp (a)" in note for note in answer.notes)


def test_overflow_that_loss_scaling_skips(run: MadeRun, ask: Ask) -> None:
    """The gradient is infinite, an operator looks, the update is left out, the next step is clean."""
    run.op("Mul.scale", [CLEAN], [numbers(INF, 1, 2)])
    run.op("AllFinite.check", [numbers(INF, 1, 2)], [np.array([False])])
    run.op("Mul.unscale", [numbers(INF, 1, 2)], [numbers(INF, 3, 4)])
    run.op("Mul.scale", [CLEAN], [GOOD], step=1)
    run.op("Log.a", [CLEAN], [GOOD], step=2)
    early = ask()
    assert operator(early) == (0, 0, "scale")
    assert any("loss scaling" in note for note in early.notes)
    run.op("Log.b", [GOOD], [BAD], step=3)
    answer = ask()
    assert operator(answer) == (0, 3, "b")
    assert any("loss scaling" in note for note in answer.notes)


def test_first_statistic_outside_a_rule(run: MadeRun, ask: Ask) -> None:
    run.op("MatMul.a", [CLEAN, GOOD], [numbers(1, 2, 100)])
    run.op("Neg.b", [numbers(1, 2, 100)], [numbers(-1, -2, -100)])
    answer = ask(where="abs(min) > 50 or max > 50")
    assert (*operator(answer), answer.cause) == (0, 0, "a", "where")
    assert [call.op_name for call in answer.spread.next] == ["b"]
    assert not ask(where="max > 1e6").found


def test_wrong_requests_are_refused(run: MadeRun, ask: Ask) -> None:
    run.op("MatMul.a", [CLEAN, GOOD], [GOOD])
    with pytest.raises(UsageError, match="no cause 'naan'"):
        ask(cause="naan")
    with pytest.raises(UsageError, match="exclude each other"):
        ask(cause="nan", where="max > 1")
    with pytest.raises(UsageError, match="not a column"):
        ask(where="maximum > 1")
    with pytest.raises(UsageError, match="no rank 7"):
        ask(rank=7)


def test_damage_that_hides_why_is_named(dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    flip(only(store, "rank_1/step_2/*/tensors/float32/c/0"), 5)
    answer = ingest.origin(open_store(store))
    assert (answer.op_type, answer.why) == ("Log", None)
    (note,) = (note for note in answer.notes if "elements are damaged" in note)
    assert "rank_1/step_2/" in note
    assert "dump-ingest repair" in note


def test_statistics_alone_are_enough(dumps: DumpLibrary, store: Path) -> None:
    """msProbe's statistics become NaN and do not count it; the stack names the line."""
    answer = origin_of(dumps["msprobe-26.2.0-pytorch-cpu"] / "statistics", store)
    assert (answer.op_type, answer.how) == ("Torch.where", "came in")
    assert answer.came_in == "Torch.where.Torch.where.0.forward.input.2"
    assert answer.source is not None
    assert "float('nan')" in answer.source.code


@pytest.mark.parametrize(
    ("op", "inputs", "output", "reason"),
    [
        ("Log.log", [numbers(1, -2, 3)], numbers(0, NAN, 1.0986123), "logarithm of a"),
        ("RealDiv.div", [numbers(1, 2, 3), numbers(1, 0, 3)], numbers(1, INF, 1), "division"),
    ],
)
def test_the_definition_of_the_operator_says_why(
    run: MadeRun, ask: Ask, op: str, inputs: list[Values], *, output: Values, reason: str
) -> None:
    run.op(op, inputs, [output])
    why = ask().why
    assert why is not None
    assert reason in why.reasons[0].reason
    assert [element.index for element in why.elements] == [(1,)]


def test_of_several_outputs_the_one_with_nan_is_explained(run: MadeRun, ask: Ask) -> None:
    """Infinity may be a mask."""
    run.op("Log.log", [numbers(1, -2, 3)], [numbers(-INF, 0, 0), numbers(0, NAN, 1.0986123)])
    why = ask().why
    assert why is not None
    assert [element.index for element in why.elements] == [(1,)]
    assert np.isnan(why.elements[0].value)


def test_where_infinity_is_searched_for_nan_beside_it_is_not_explained(run: MadeRun, ask: Ask) -> None:
    run.op("RealDiv.div", [numbers(0, 1, 2), numbers(0, 0, 1)], [numbers(NAN, INF, 2)])
    reasons = {cause: ask(cause=cause).why for cause in ("nan", "inf")}
    assert {cause: why.summary for cause, why in reasons.items() if why is not None} == {
        "nan": "zero divided by zero (1 of 3 elements)",
        "inf": "division by zero (1 of 3 elements)",
    }


def test_infinity_that_came_in_is_not_explained_by_the_operator_that_read_it(run: MadeRun, ask: Ask) -> None:
    run.op("MatMul.product", [numbers(1, INF), numbers(1, 1)], [numbers(INF)])
    answer = ask()
    assert (answer.how, answer.came_in) == ("came in", "MatMul.product.input.0")
    assert answer.why is not None
    assert answer.why.summary == ""


def test_what_other_ranks_put_in_may_not_be_known(run: MadeRun, ask: Ask) -> None:
    """Rank 1 is not in the answer: the collective is named, and that it may have come from elsewhere."""
    run.op("AllReduce.sync", [CLEAN], [BAD], rank=0)
    run.op("Log.a", [CLEAN], [BAD], rank=1)
    run.op("AllReduce.sync", [BAD], [BAD], rank=1)
    answer = ask(rank=0)
    assert (*operator(answer), answer.how) == (0, 0, "sync", "came through a collective")
    assert any("a rank that the answer is not about" in note for note in answer.notes)


def test_bad_data_came_in(run: MadeRun, ask: Ask) -> None:
    run.op("Cast.a", [BAD], [WORSE])
    run.op("Neg.b", [WORSE], [numbers(NAN, 1, 2)])
    run.parameter("x", BAD)
    answer = ask()
    assert (*operator(answer), answer.how) == (0, 0, "a", "came in")
    assert answer.came_in == "Cast.a.input.0 (Parameter x)"
    assert [call.op_name for call in answer.spread.next] == ["b"]


def test_row_that_is_masked_as_a_whole(run: MadeRun, ask: Ask) -> None:
    """The operator that makes NaN of a mask is named, whoever made the mask."""
    whole = numbers(-INF, -INF, -INF)
    for step in range(2):
        run.op("Add.scores", [CLEAN], [MASKED if step == 0 else whole], step=step)
        run.op("Softmax.sm", [MASKED if step == 0 else whole], [GOOD if step == 0 else BAD], step=step)
    answer = ask()
    assert operator(answer) == (0, 1, "sm")
    assert any("taken for a mask" in note for note in answer.notes)


def test_step_that_the_rank_does_not_have_is_said(run: MadeRun, ask: Ask) -> None:
    for rank, step in ((0, 0), (1, 0), (1, 1), (1, 2)):
        run.op("Add.add", [CLEAN, CLEAN], [CLEAN], rank=rank, step=step)
    run.op("Add.add", [BAD, CLEAN], [BAD], step=2)
    answer = ask()
    assert "Rank 0 has no step 1 in the answer: it may have begun there." in answer.notes


def test_the_step_before_that_the_rank_lacks_is_said_of_what_was_certainly_born(
    run: MadeRun, ask: Ask
) -> None:
    for rank, step in ((0, 0), (0, 1), (0, 2), (1, 0)):
        run.op("Log.log", [CLEAN], [CLEAN], rank=rank, step=step)
    run.op("Log.log", [CLEAN], [BAD], rank=1, step=2)
    assert "Rank 1 has no step 1 in the answer: it may have begun there." in ask().notes


def test_what_was_read_in_another_form_is_not_said_to_be_unread(run: MadeRun, ask: Ask) -> None:
    run.op("Log.log", [CLEAN], [BAD])
    run.op("Add.add", [BAD.astype(np.float16)], [WORSE])
    answer = ask()
    assert operator(answer) == (0, 0, "log")
    assert any("in another form" in note for note in answer.notes)
    assert [other.op_name for other in answer.alternatives] == ["add"]


def test_mask_before_softmax(run: MadeRun, ask: Ask) -> None:
    for step in range(3):
        run.op("MaskedFill.mask", [CLEAN], [MASKED], step=step)
        run.op("Softmax.sm", [MASKED], [GOOD], step=step)
    answer = ask()
    assert not answer.found
    assert any("-Inf born in MaskedFill (mask) (rank 0, steps 0-2)" in note for note in answer.notes)


def test_as_much_infinity_as_once_went_nowhere_may_matter_later(run: MadeRun, ask: Ask) -> None:
    infinite = numbers(INF, 1)
    run.op("Exp.exp", [CLEAN], [infinite], step=0)
    run.op("Minimum.clip", [infinite], [CLEAN], step=0)
    run.op("Mul.update", [CLEAN, GOOD], [infinite], step=1)
    run.parameter("weight", infinite, step=1)
    answer = ask()
    assert operator(answer) == (0, 1, "update")
    assert any("went nowhere" in note and "exp" in note for note in answer.notes)


@pytest.fixture
def snapshot(run: MadeRun, made: MadeDump, store: Path) -> Snapshot:
    """NaN on rank 1 in step 1, infinity on rank 0 in step 2."""
    for step in range(3):
        for rank in (0, 1):
            bad = {(1, 1): BAD, (0, 2): numbers(INF, 1)}.get((rank, step), CLEAN)
            run.op("Log.a", [CLEAN], [bad], rank=rank, step=step)
    ingest_directly(made.root, store)
    return take_snapshot(open_store(store))


def test_damaged_ranks_are_left_out_and_named(snapshot: Snapshot, store: Path) -> None:
    for chunk in store.glob("rank_1/step_1/*/index/*/c/0/0"):
        chunk.unlink()
    suspects = Suspects(snapshot, bad_numbers, "auto")
    for _ in range(2):
        assert list(suspects.trace(1, [0, 1, 7])) == [0]
    (left,) = suspects.damaged
    assert left.key == StepKey(1, 1)
    assert left.reason.startswith("damaged: ")


def test_first_overflow_record(dumps: DumpLibrary, store: Path) -> None:
    answer = origin_of(dumps["cann-bin-synthetic"] / "torchair", store)
    assert (answer.how, answer.cause, answer.rank, answer.step) == ("recorded", "overflow", 1, 0)
    assert any("task and stream" in note for note in answer.notes)
    assert answer.to_dict() == ingest.origin(open_store(store), cause="overflow").to_dict()


def test_damaged_steps_that_may_hold_nan_are_left_out_beside_an_overflow(
    dumps: DumpLibrary, store: Path, run: MadeRun
) -> None:
    run.op("Log.log", [CLEAN], [BAD], step=5)
    ingest_directly(run.dump.root, store)
    flip(only(store, "rank_0/step_5/*/index/labels/c/0/0"))
    answer = origin_of(dumps["cann-bin-synthetic"] / "torchair", store)
    assert answer.cause == "overflow"
    assert [left.key for left in answer.left_out] == [StepKey(0, 5)]


def test_statistics_are_strict_json() -> None:
    """Counts are whole numbers; what is unknown or infinite is null."""
    values = dict.fromkeys(FIELDS, 2.0) | {"mean": math.nan, "max": math.inf}
    tensor = OriginTensor("Log.a.input.0", "input", 0, "float32", (2, 3), Statistics(**values), is_bad=True)
    fields = strict_json(json.dumps(tensor.to_dict()))
    assert (fields["mean"], fields["max"], fields["min"]) == (None, None, 2.0)
    assert isinstance(fields["nan_count"], int)
    assert fields["shape"] == [2, 3]


@pytest.mark.parametrize(
    ("looked_for", "text"),
    [
        ("auto", "No NaN, Inf or overflow record that matters in the examined steps."),
        ("nan", "No NaN that matters in the examined steps."),
        ("max > 6e4", "No tensor fulfils max > 6e4."),
    ],
)
def test_answer_without_an_operator_says_what_was_looked_for(looked_for: str, text: str) -> None:
    assert str(OriginAnswer(None, looked_for=looked_for)) == text


def test_names_in_the_text_do_not_reach_the_terminal() -> None:
    answer = OriginAnswer("nan", rank=0, step=1, op_type="Log\x1b[2J", op_name="a", how="born", what="NaN")
    assert str(answer).startswith("NaN was born in Log\\x1b[2J (a)")


# How it spread, and where else it may have begun.


def test_each_transfer_from_stage_to_stage_is_told(run: MadeRun, ask: Ask) -> None:
    """Three stages of a pipeline that call what they receive by one name."""
    run.op("Log.log", [CLEAN], [BAD], rank=0)
    run.op("Send.op1", [BAD], rank=0)
    run.op("Receive.op1", (), [BAD], rank=1)
    run.op("Add.add", [BAD, GOOD], [WORSE], rank=1)
    run.op("Send.op2", [WORSE], rank=1)
    run.op("Receive.op1", (), [WORSE], rank=2)
    spread = ask().spread
    assert [(collective.from_ranks, collective.to_ranks) for collective in spread.collectives] == [
        ((0,), (1,)),
        ((1,), (2,)),
    ]


def test_updated_parameters_carry_it_into_the_next_step(run: MadeRun, ask: Ask) -> None:
    run.op("Log.grad", [CLEAN], [WORSE])
    run.op("ApplyMomentum.opt", [BAD, BAD, numbers(0.1), WORSE], [BAD])
    run.parameter("weight", BAD)
    run.op("MatMul.first", [CLEAN, BAD], [WORSE], step=1)
    answer = ask()
    assert operator(answer) == (0, 0, "grad")
    assert answer.spread.ends == ("rank 0 Parameter.weight.output.0",)
    assert [(later.step, later.through) for later in answer.spread.steps] == [(1, ("weight",))]


def test_later_steps_name_only_ranks_with_more_than_harmless_infinity(run: MadeRun, ask: Ask) -> None:
    """Every rank masks in every step; rank 1 also holds an infinite state from step 1 on."""
    infinite = numbers(INF, 1)
    for step in range(4):
        for rank in (0, 1):
            run.op("MaskedFill.mask", [CLEAN], [MASKED], rank=rank, step=step)
            run.op("Softmax.sm", [MASKED], [GOOD], rank=rank, step=step)
        if step == 1:
            run.op("Mul.update", [CLEAN, GOOD], [infinite], rank=1, step=step)
        if step > 0:
            run.parameter("state", infinite, rank=1, step=step)
    answer = ask()
    assert operator(answer) == (1, 1, "update")
    assert [(later.step, later.ranks) for later in answer.spread.steps] == [(2, (1,)), (3, (1,))]


def test_a_state_that_is_finite_again_is_in_no_later_step(run: MadeRun, ask: Ask) -> None:
    """The bad step is the first one, so only the next one shows that its masks are harmless."""
    infinite = numbers(INF, 1)
    run.op("Mul.update", [CLEAN, GOOD], [infinite])
    run.parameter("state", infinite)
    for step in range(4):
        run.op("MaskedFill.mask", [CLEAN], [MASKED], step=step)
        run.op("Softmax.sm", [MASKED], [GOOD], step=step)
    answer = ask()
    assert operator(answer) == (0, 0, "update")
    assert answer.spread.steps == ()


# What is bad passes from call to call on a rank, and through collectives between ranks.


def test_update_in_place_may_be_the_first(run: MadeRun, ask: Ask) -> None:
    """The parameter was dumped after the update: it holds NaN as an input, too."""
    run.op("MatMul.first", [CLEAN, GOOD], [CLEAN])
    run.op("ApplyMomentum.opt", [BAD, WORSE, numbers(0.1), CLEAN], [BAD])
    answer = ask()
    assert (*operator(answer), answer.how) == (0, 0, "opt", "born")
    assert any("writes in place" in note for note in answer.notes)


def test_a_gradient_may_be_made_where_the_slope_of_a_function_is_infinite(run: MadeRun, ask: Ask) -> None:
    """As in a gradient penalty, which takes a root of zero; all that the forward pass computed is finite."""
    run.op("Sqrt.root", [numbers(0, 4)], [numbers(0, 2)])
    run.op("Sqrt.other", [numbers(1, 4)], [numbers(1, 2)])
    run.op("Gradient.weight", [], [numbers(math.nan, 1)])
    (doubt, *_) = (note for note in ask().notes if "derivative" in note)
    assert doubt == "Sqrt (root) read 0, where the derivative is infinite: that may have made it."


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


def test_collective_that_brings_it_is_no_birth(run: MadeRun, ask: Ask) -> None:
    run.op("HcomAllReduce.sync", [CLEAN], [WORSE], rank=0)
    run.op("Mul.next", [WORSE, CLEAN], [BAD], rank=0)
    run.op("Log.a", [CLEAN], [BAD], rank=1)
    run.op("HcomAllReduce.sync", [BAD], [WORSE], rank=1)
    answer = ask()
    assert operator(answer) == (1, 0, "a")
    assert answer.spread.ranks == (0, 1)
    assert [collective.op_name for collective in answer.spread.collectives] == ["sync"]
    assert answer.alternatives == ()


def test_collectives_of_one_name_in_several_groups_are_told_apart(run: MadeRun, ask: Ask) -> None:
    """Ranks 0, 1 and ranks 2, 3 reduce among themselves, under one name."""
    births, given = {0: BAD, 3: WORSE}, (numbers(7, NAN, 9), numbers(NAN, NAN, 11))
    for rank in range(4):
        if rank in births:
            run.op("Log.log", [GOOD], [births[rank]], rank=rank)
        run.op("AllReduce.op1", [births.get(rank, CLEAN)], [given[rank // 2]], rank=rank)
    answer = ask()
    assert operator(answer) == (0, 0, "log")
    assert answer.spread.ranks == (0, 1)
    assert [(collective.from_ranks, collective.to_ranks) for collective in answer.spread.collectives] == [
        ((0,), (1,))
    ]
    assert [(other.rank, other.op_name) for other in answer.alternatives] == [(3, "log")]


def test_what_is_nan_all_over_proves_no_way(run: MadeRun, ask: Ask) -> None:
    """What came to rank 1 through `op3` is from a rank that is not there, and not from `late`."""
    one, nan = np.array(1, np.float32), np.array(NAN, np.float32)
    run.op("AllReduce.op3", [one], [nan], rank=1)
    run.op("AllReduce.op3", [one], [one], rank=0)
    run.op("Log.late", [one], [nan], rank=0)
    for rank in range(2):
        run.op("AllReduce.op9", [nan], [nan], rank=rank)
    answer = ask()
    assert operator(answer) == (0, 0, "late")
    assert [(other.rank, other.op_name) for other in answer.alternatives] == [(1, "op3")]
    assert answer.spread.collectives == ()


def test_all_reduce_in_place_shows_its_result_as_its_input(run: MadeRun, ask: Ask) -> None:
    for rank in (0, 1):
        run.op("Log.a", [CLEAN], [BAD if rank == 1 else GOOD], rank=rank)
        run.op("HcomAllReduce.sync", [WORSE], [WORSE], rank=rank)
    answer = ask()
    assert operator(answer) == (1, 0, "a")
    assert answer.spread.ranks == (0, 1)
    assert answer.spread.collectives[0].is_assumed


def test_first_is_what_ran_first_and_not_what_its_clock_says(run: MadeRun, ask: Ask) -> None:
    """The clock of rank 1 is an hour behind; its NaN comes after an AllReduce, that of rank 0 before."""
    run.clocks[1] = 1_795_216_000_000_000
    for rank in (0, 1):
        run.op("Log.a", [CLEAN], [BAD if rank == 0 else GOOD], rank=rank)
        run.op("AllReduce.sync", [CLEAN], [CLEAN], rank=rank)
        run.op("Sqrt.b", [CLEAN], [GOOD if rank == 0 else BAD], rank=rank)
    answer = ask()
    assert operator(answer) == (0, 0, "a")
    assert [(other.rank, other.op_name) for other in answer.alternatives] == [(1, "b")]
    assert "after a later collective" in answer.alternatives[0].reason


@pytest.mark.parametrize("gathers", ["AllReduce", "Send"])
def test_names_that_do_not_mean_one_collective_order_nothing(gathers: str, run: MadeRun, ask: Ask) -> None:
    """Each rank numbers its operators on its own: `op2` is the second one here, the first one there."""
    run.op(f"{gathers}.op1", [CLEAN], [numbers(1)], rank=0)
    run.op(f"{gathers}.op2", [CLEAN], [numbers(2)], rank=0)
    run.op("Log.late", [CLEAN], [BAD], rank=0)
    run.op(f"{gathers}.op2", [CLEAN], [numbers(1)], rank=1)
    run.op("Log.early", [CLEAN], [WORSE], rank=1)
    run.op(f"{gathers}.op3", [CLEAN], [numbers(2)], rank=1)
    answer = ask()
    assert {answer.op_name, *(other.op_name for other in answer.alternatives)} == {"late", "early"}
    assert "no collective between them tells" in answer.alternatives[0].reason


def test_groups_that_do_not_meet_are_in_no_order(run: MadeRun, ask: Ask) -> None:
    for rank in range(2):
        run.op("AllReduce.op0", [CLEAN], [numbers(3, 3)], rank=rank)
    run.op("Log.log", [CLEAN], [BAD], rank=0)
    run.op("Log.log", [CLEAN], [BAD], rank=2)
    for rank in range(2, 4):
        run.op("AllReduce.op0", [CLEAN], [numbers(4, 4)], rank=rank)
    answer = ask()
    assert operator(answer) == (2, 0, "log")
    assert "no collective between them tells" in answer.alternatives[0].reason
