"""Origin: the first operator that gave NaN or Inf, by the order in which operators ran."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest import OriginAnswer, open_store
from ingest.questions.origin.operator_kinds import is_collective, is_optimizer, writes_in_place
from tests.dumps import DumpLibrary
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.samples import SAMPLES
from workers.errors import UsageError

NAN, INF = np.nan, np.inf
CLEAN = numbers(1, 2, 3)
GOOD = numbers(4, 5, 6)
BAD = numbers(7, NAN, 8)
WORSE = numbers(NAN, NAN, 9)
MASKED = numbers(0, -INF, -INF)


@pytest.fixture
def run(made: MadeDump) -> MadeRun:
    return MadeRun(made)


@pytest.fixture
def ask(made: MadeDump, store: Path) -> Callable[..., OriginAnswer]:
    """Take the run into a store, and ask."""

    def asked(**how: Any) -> OriginAnswer:
        ingest_directly(made.root, store)
        return ingest.origin(open_store(store), **how)

    return asked


def origin_of(dump: Path, store: Path, **how: Any) -> OriginAnswer:
    ingest_directly(dump, store)
    return ingest.origin(open_store(store), **how)


def operator(answer: OriginAnswer) -> tuple[int | None, int | None, str | None]:
    return answer.rank, answer.step, answer.op_name


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


class TestRealDumps:
    def test_log_of_a_negative_number_stays_in_the_loss_of_its_rank(
        self, dumps: DumpLibrary, store: Path
    ) -> None:
        """The files are the truth: NaN is on rank 1 only, in steps 2 and 3."""
        dump = dumps["nan-log-2rank"]
        truth = json.loads((dump / "truth.json").read_text())["files"]
        holding = {path.split("/")[0] for path, counts in truth.items() if counts["nan"]}
        answer = origin_of(dump / "dump", store)
        assert operator(answer) == (1, 2, first_by_files(dump / "dump", 1, 2))
        assert (answer.op_type, answer.graph, answer.what, answer.how) == ("Log", "0", "NaN", "born")
        assert answer.source is not None
        assert answer.source.code == "return -(self.log(self.sig(self.net(x)) + shift)).mean()"
        assert [one.statistics.nan_count for one in (*answer.inputs, *answer.outputs)] == [0, 2]
        assert [one.op_type for one in answer.spread.next] == ["ReduceMean", "Neg"]
        assert {f"rank_{rank}" for rank in answer.spread.ranks} == holding == {"rank_1"}
        assert answer.spread.collectives == ()
        later = answer.spread.steps
        assert [(one.step, one.ranks, one.through) for one in later] == [(3, (1,), ())]
        assert later[0].born_again == ("Log.Default_net-LogLoss_Log-op0",)
        assert answer.alternatives == ()

    def test_sqrt_of_a_negative_number_comes_to_all_weights_through_all_reduce(
        self, dumps: DumpLibrary, store: Path
    ) -> None:
        dump = dumps["nan-sqrt-2rank"] / "dump"
        answer = origin_of(dump, store)
        assert operator(answer) == (1, 2, first_by_files(dump, 1, 2))
        assert answer.op_type == "Sqrt"
        assert answer.spread.ranks == (0, 1)
        assert {(one.from_ranks, one.to_ranks) for one in answer.spread.collectives} == {((1,), (0,))}
        assert {one.op_name for one in answer.spread.collectives} == {
            f"Default_AllReduce-op{number}" for number in range(6)
        }
        assert not any(one.is_assumed for one in answer.spread.collectives)
        assert [(one.step, one.ranks) for one in answer.spread.steps] == [(3, (0, 1))]
        assert {"net_l3_weight", "net_l3_bias"} <= set(answer.spread.steps[0].through)
        assert answer.alternatives == ()

    def test_infinity_comes_before_the_nan_that_it_becomes(self, dumps: DumpLibrary, store: Path) -> None:
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

    def test_mask_is_harmless_until_it_covers_a_row(self, dumps: DumpLibrary, store: Path) -> None:
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
    def test_where_nothing_is_wrong_it_says_so(self, name: str, dumps: DumpLibrary, store: Path) -> None:
        dump = next(path.parent for path in sorted(dumps[name].glob("*/rank_0")))
        answer = origin_of(dump, store)
        assert not answer.found
        assert answer.to_dict()["rank"] is None
        assert answer.to_dict()["alternatives"] == []
        keys = "rank step graph op_type op_name source inputs outputs spread alternatives"
        assert set(keys.split()) <= answer.to_dict().keys()

    def test_statistics_alone_are_enough(self, dumps: DumpLibrary, store: Path) -> None:
        """msProbe's statistics become NaN and do not count it; the stack names the line."""
        answer = origin_of(dumps["msprobe-26.2.0-pytorch-cpu"] / "statistics", store)
        assert (answer.op_type, answer.how) == ("Torch.where", "came in")
        assert answer.came_in == "Torch.where.Torch.where.0.forward.input.2"
        assert answer.source is not None
        assert "float('nan')" in answer.source.code

    @pytest.mark.parametrize("part", ["stats", "tf", "torchair", "mindspore_acl"])
    def test_dumps_of_cann_get_an_answer(self, part: str, dumps: DumpLibrary, store: Path) -> None:
        answer = origin_of(dumps["cann-bin-synthetic"] / part, store, include_partial=True)
        assert answer.to_dict()

    @pytest.mark.skipif(not SAMPLES.is_dir(), reason="samples are not there")
    def test_old_layouts_get_an_answer(self, store: Path) -> None:
        answer = origin_of(SAMPLES / "mindspore-1.x-gpu-raw-bin", store)
        assert not answer.found


class TestWhereItBegan:
    def test_first_is_what_ran_first_and_not_what_its_clock_says(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        """The clock of rank 1 is an hour behind; its NaN comes after an AllReduce, that of rank 0 before."""
        run.clocks[1] = 1_795_216_000_000_000
        for rank in (0, 1):
            run.op("Log.a", [CLEAN], [BAD if rank == 0 else GOOD], rank=rank)
            run.op("AllReduce.sync", [CLEAN], [CLEAN], rank=rank)
            run.op("Sqrt.b", [CLEAN], [GOOD if rank == 0 else BAD], rank=rank)
        answer = ask()
        assert operator(answer) == (0, 0, "a")
        assert [(one.rank, one.op_name) for one in answer.alternatives] == [(1, "b")]
        assert "after a later collective" in answer.alternatives[0].reason

    def test_ranks_that_nothing_orders_are_both_named(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        for rank in (0, 1):
            run.op("Log.a", [CLEAN], [BAD], rank=rank)
        answer = ask()
        assert operator(answer) == (0, 0, "a")
        assert "no collective between them" in answer.alternatives[0].reason

    def test_collective_that_brings_it_is_no_birth(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        run.op("HcomAllReduce.sync", [CLEAN], [WORSE], rank=0)
        run.op("Mul.next", [WORSE, CLEAN], [BAD], rank=0)
        run.op("Log.a", [CLEAN], [BAD], rank=1)
        run.op("HcomAllReduce.sync", [BAD], [WORSE], rank=1)
        answer = ask()
        assert operator(answer) == (1, 0, "a")
        assert answer.spread.ranks == (0, 1)
        assert [one.op_name for one in answer.spread.collectives] == ["sync"]
        assert answer.alternatives == ()

    def test_what_other_ranks_put_in_may_not_be_known(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        """Rank 1 is not in the answer: the collective is named, and that it may have come from elsewhere."""
        run.op("AllReduce.sync", [CLEAN], [BAD], rank=0)
        run.op("Log.a", [CLEAN], [BAD], rank=1)
        run.op("AllReduce.sync", [BAD], [BAD], rank=1)
        answer = ask(rank=0)
        assert (*operator(answer), answer.how) == (0, 0, "sync", "came through a collective")
        assert any("a rank that the answer is not about" in note for note in answer.notes)

    def test_send_and_receive_have_different_names(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        run.op("Log.a", [CLEAN], [BAD], rank=0)
        run.op("Send.to_1", [BAD], [], rank=0)
        run.op("Receive.from_0", [], [BAD], rank=1)
        run.op("Neg.b", [BAD], [WORSE], rank=1)
        answer = ask()
        assert operator(answer) == (0, 0, "a")
        assert answer.spread.ranks == (0, 1)
        assert [(one.from_ranks, one.to_ranks) for one in answer.spread.collectives] == [((0,), (1,))]

    def test_each_transfer_from_stage_to_stage_is_told(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        """Three stages of a pipeline that call what they receive by one name."""
        run.op("Log.log", [CLEAN], [BAD], rank=0)
        run.op("Send.op1", [BAD], rank=0)
        run.op("Receive.op1", (), [BAD], rank=1)
        run.op("Add.add", [BAD, GOOD], [WORSE], rank=1)
        run.op("Send.op2", [WORSE], rank=1)
        run.op("Receive.op1", (), [WORSE], rank=2)
        spread = ask().spread
        assert [(one.from_ranks, one.to_ranks) for one in spread.collectives] == [((0,), (1,)), ((1,), (2,))]

    def test_step_that_the_rank_does_not_have_is_said(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        for rank, step in ((0, 0), (1, 0), (1, 1), (1, 2)):
            run.op("Add.add", [CLEAN, CLEAN], [CLEAN], rank=rank, step=step)
        run.op("Add.add", [BAD, CLEAN], [BAD], step=2)
        answer = ask()
        assert "Rank 0 has no step 1 in the answer: it may have begun there." in answer.notes

    def test_collectives_of_one_name_in_several_groups_are_told_apart(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        """Ranks 0, 1 and ranks 2, 3 reduce among themselves, under one name."""
        births, given = {0: BAD, 3: WORSE}, (numbers(7, NAN, 9), numbers(NAN, NAN, 11))
        for rank in range(4):
            if rank in births:
                run.op("Log.log", [GOOD], [births[rank]], rank=rank)
            run.op("AllReduce.op1", [births.get(rank, CLEAN)], [given[rank // 2]], rank=rank)
        answer = ask()
        assert operator(answer) == (0, 0, "log")
        assert answer.spread.ranks == (0, 1)
        assert [(one.from_ranks, one.to_ranks) for one in answer.spread.collectives] == [((0,), (1,))]
        assert [(one.rank, one.op_name) for one in answer.alternatives] == [(3, "log")]

    @pytest.mark.parametrize("gathers", ["AllReduce", "Send"])
    def test_names_that_do_not_mean_one_collective_order_nothing(
        self, gathers: str, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        """Each rank numbers its operators on its own: `op2` is the second one here, the first one there."""
        run.op(f"{gathers}.op1", [CLEAN], [numbers(1)], rank=0)
        run.op(f"{gathers}.op2", [CLEAN], [numbers(2)], rank=0)
        run.op("Log.late", [CLEAN], [BAD], rank=0)
        run.op(f"{gathers}.op2", [CLEAN], [numbers(1)], rank=1)
        run.op("Log.early", [CLEAN], [WORSE], rank=1)
        run.op(f"{gathers}.op3", [CLEAN], [numbers(2)], rank=1)
        answer = ask()
        assert {answer.op_name, *(one.op_name for one in answer.alternatives)} == {"late", "early"}
        assert "no collective between them tells" in answer.alternatives[0].reason

    def test_groups_that_do_not_meet_are_in_no_order(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        for rank in range(2):
            run.op("AllReduce.op0", [CLEAN], [numbers(3, 3)], rank=rank)
        run.op("Log.log", [CLEAN], [BAD], rank=0)
        run.op("Log.log", [CLEAN], [BAD], rank=2)
        for rank in range(2, 4):
            run.op("AllReduce.op0", [CLEAN], [numbers(4, 4)], rank=rank)
        answer = ask()
        assert operator(answer) == (2, 0, "log")
        assert "no collective between them tells" in answer.alternatives[0].reason

    def test_what_is_nan_all_over_proves_no_way(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
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

    def test_what_was_read_in_another_form_is_not_said_to_be_unread(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        run.op("Log.log", [CLEAN], [BAD])
        run.op("Add.add", [BAD.astype(np.float16)], [WORSE])
        answer = ask()
        assert operator(answer) == (0, 0, "log")
        assert any("in another form" in note for note in answer.notes)
        assert [one.op_name for one in answer.alternatives] == ["add"]

    def test_all_reduce_in_place_shows_its_result_as_its_input(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        for rank in (0, 1):
            run.op("Log.a", [CLEAN], [BAD if rank == 1 else GOOD], rank=rank)
            run.op("HcomAllReduce.sync", [WORSE], [WORSE], rank=rank)
        answer = ask()
        assert operator(answer) == (1, 0, "a")
        assert answer.spread.ranks == (0, 1)
        assert answer.spread.collectives[0].is_assumed

    def test_updated_parameters_carry_it_into_the_next_step(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        run.op("Log.grad", [CLEAN], [WORSE])
        run.op("ApplyMomentum.opt", [BAD, BAD, numbers(0.1), WORSE], [BAD])
        run.parameter("weight", BAD)
        run.op("MatMul.first", [CLEAN, BAD], [WORSE], step=1)
        answer = ask()
        assert operator(answer) == (0, 0, "grad")
        assert answer.spread.ends == ("rank 0 Parameter.weight.output.0",)
        assert [(one.step, one.through) for one in answer.spread.steps] == [(1, ("weight",))]

    def test_update_in_place_may_be_the_first(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        """The parameter was dumped after the update: it holds NaN as an input, too."""
        run.op("MatMul.first", [CLEAN, GOOD], [CLEAN])
        run.op("ApplyMomentum.opt", [BAD, WORSE, numbers(0.1), CLEAN], [BAD])
        answer = ask()
        assert (*operator(answer), answer.how) == (0, 0, "opt", "born")
        assert any("writes in place" in note for note in answer.notes)

    def test_bad_data_came_in(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        run.op("Cast.a", [BAD], [WORSE])
        run.op("Neg.b", [WORSE], [numbers(NAN, 1, 2)])
        run.parameter("x", BAD)
        answer = ask()
        assert (*operator(answer), answer.how) == (0, 0, "a", "came in")
        assert answer.came_in == "Cast.a.input.0 (Parameter x)"
        assert [one.op_name for one in answer.spread.next] == ["b"]

    def test_missing_inputs_are_said(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        run.op("Add.a", [None, CLEAN], [BAD])
        assert any("input 0 of a was not dumped" in note.lower() for note in ask().notes)

    def test_one_input_of_a_product_is_not_enough(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        run.op("MatMul.a", [CLEAN], [BAD], step=1)
        notes = ask().notes
        assert any("only one input of a was dumped" in note.lower() for note in notes)
        assert any("Step 1 is the first of the answer" in note for note in notes)
        run.op("MatMul.a", [CLEAN], [GOOD])
        notes = ask().notes
        assert any("In step 0 nothing of that was on this rank" in note for note in notes)

    def test_dump_of_outputs_alone(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        for rank in (0, 1):
            run.op("Log.a", [], [BAD if rank == 1 else GOOD], rank=rank)
            run.op("Neg.b", [], [WORSE if rank == 1 else GOOD], rank=rank)
            run.op("AllReduce.sync", [], [numbers(NAN, 0, 0)], rank=rank)
        answer = ask()
        assert operator(answer) == (1, 0, "a")
        assert any("no inputs were dumped" in note.lower() for note in answer.notes)
        assert [(one.op_name, one.is_assumed) for one in answer.spread.next] == [("b", True), ("sync", True)]
        assert answer.spread.ranks == (0, 1)

    def test_dump_of_inputs_alone(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        run.op("Log.a", [CLEAN], [])
        run.op("Neg.b", [BAD], [])
        run.op("Mul.c", [WORSE], [])
        answer = ask()
        assert (*operator(answer), answer.how) == (0, 0, "b", "came in")
        assert any("dumped before is Log (a)" in note for note in answer.notes)

    def test_loop_names_the_run(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        for number in range(3):
            run.op("Mul.body", [CLEAN if number < 2 else GOOD], [GOOD if number < 2 else BAD])
        answer = ask()
        assert (*operator(answer), answer.occurrence) == (0, 0, "body", 2)
        assert any("its run 3" in note for note in answer.notes)

    def test_graphs_of_one_step_are_told_apart(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        run.op("Log.a", [CLEAN], [GOOD], graph="0")
        run.op("Log.a", [CLEAN], [BAD], graph="1")
        run.op("Log.a", [CLEAN], [WORSE], graph="2")
        answer = ask()
        assert (*operator(answer), answer.graph) == (0, 0, "a", "1")
        assert [one.graph for one in answer.alternatives] == ["2"]

    def test_module_around_the_operator_is_not_named(
        self, dump_copy: Callable[[str], Path], store: Path
    ) -> None:
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


class TestHarmless:
    def test_mask_before_softmax(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        for step in range(3):
            run.op("MaskedFill.mask", [CLEAN], [MASKED], step=step)
            run.op("Softmax.sm", [MASKED], [GOOD], step=step)
        answer = ask()
        assert not answer.found
        assert any("-Inf born in MaskedFill (mask) (rank 0, step 0)" in note for note in answer.notes)
        assert any("Not looked at: step 1-2" in note for note in answer.notes)

    def test_row_that_is_masked_as_a_whole(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        """The operator that makes NaN of a mask is named, whoever made the mask."""
        whole = numbers(-INF, -INF, -INF)
        for step in range(2):
            run.op("Add.scores", [CLEAN], [MASKED if step == 0 else whole], step=step)
            run.op("Softmax.sm", [MASKED if step == 0 else whole], [GOOD if step == 0 else BAD], step=step)
        answer = ask()
        assert operator(answer) == (0, 1, "sm")
        assert any("taken for a mask" in note for note in answer.notes)

    def test_mask_that_is_an_output_matters(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        run.op("Add.logits", [CLEAN], [MASKED])
        answer = ask()
        assert (operator(answer), answer.what) == ((0, 0, "logits"), "-Inf")

    def test_log_of_zero_that_becomes_nan_is_no_mask(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        run.op("Log.a", [CLEAN], [MASKED])
        run.op("Mul.b", [MASKED, GOOD], [BAD])
        assert operator(ask()) == (0, 0, "a")

    def test_infinity_that_went_nowhere_gives_way_to_what_matters(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        run.op("Exp.a", [CLEAN], [numbers(INF, 1, 2)])
        run.op("Reciprocal.b", [numbers(INF, 1, 2)], [GOOD])
        alone = ask(step=0)
        assert (operator(alone), alone.what) == ((0, 0, "a"), "+Inf")
        assert any("went nowhere" in note for note in alone.notes)
        run.op("Log.c", [CLEAN], [BAD], step=1)
        answer = ask()
        assert operator(answer) == (0, 1, "c")
        assert any("+Inf born in Exp (a)" in note for note in answer.notes)

    def test_as_much_infinity_as_once_went_nowhere_may_matter_later(
        self, run: MadeRun, ask: Callable[..., OriginAnswer]
    ) -> None:
        infinite = numbers(INF, 1)
        run.op("Exp.exp", [CLEAN], [infinite], step=0)
        run.op("Minimum.clip", [infinite], [CLEAN], step=0)
        run.op("Mul.update", [CLEAN, GOOD], [infinite], step=1)
        run.parameter("weight", infinite, step=1)
        answer = ask()
        assert operator(answer) == (0, 1, "update")
        assert any("went nowhere" in note and "exp" in note for note in answer.notes)

    def test_overflow_that_loss_scaling_skips(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
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


class TestOtherCauses:
    def test_first_statistic_outside_a_rule(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        run.op("MatMul.a", [CLEAN, GOOD], [numbers(1, 2, 100)])
        run.op("Neg.b", [numbers(1, 2, 100)], [numbers(-1, -2, -100)])
        answer = ask(where="abs(min) > 50 or max > 50")
        assert (*operator(answer), answer.cause) == (0, 0, "a", "where")
        assert [one.op_name for one in answer.spread.next] == ["b"]
        assert not ask(where="max > 1e6").found

    def test_first_overflow_record(self, dumps: DumpLibrary, store: Path) -> None:
        answer = origin_of(dumps["cann-bin-synthetic"] / "torchair", store)
        assert (answer.how, answer.cause, answer.rank, answer.step) == ("recorded", "overflow", 1, 0)
        assert any("task and stream" in note for note in answer.notes)
        assert answer.to_dict() == ingest.origin(open_store(store), cause="overflow").to_dict()

    def test_wrong_requests_are_refused(self, run: MadeRun, ask: Callable[..., OriginAnswer]) -> None:
        run.op("MatMul.a", [CLEAN, GOOD], [GOOD])
        with pytest.raises(UsageError, match="no cause 'naan'"):
            ask(cause="naan")
        with pytest.raises(UsageError, match="exclude each other"):
            ask(cause="nan", where="max > 1")
        with pytest.raises(UsageError, match="not a column"):
            ask(where="maximum > 1")
        with pytest.raises(UsageError, match="no rank 7"):
            ask(rank=7)

    def test_partial_steps_are_left_out_and_named(
        self, run: MadeRun, made: MadeDump, ask: Callable[..., OriginAnswer]
    ) -> None:
        run.op("Log.a", [CLEAN], [BAD])
        made.add(b"no npy")
        run.op("Log.b", [CLEAN], [BAD], step=1)
        answer = ask()
        assert operator(answer) == (0, 1, "b")
        assert [(one.key.step, one.reason) for one in answer.left_out] == [
            (0, "partial: 1 files quarantined")
        ]
        assert any("Step 0 was left out" in note for note in answer.notes)
        assert operator(ask(include_partial=True)) == (0, 0, "a")


@pytest.mark.parametrize(
    "name",
    [
        "AllReduce",
        "HcomAllReduce",
        "all_reduce",
        "Distributed.all_reduce",
        "c10d_functional.all_reduce.default",
        "AllGather",
        "hcom_all_gather",
        "ReduceScatter",
        "HcomReduceScatter",
        "Broadcast",
        "HcomBroadcast",
        "AlltoAll",
        "AlltoAllV",
        "AllToAllv",
        "HcomAllToAllV",
        "Send",
        "Receive",
        "HcomSend",
        "HcomReceive",
        "MintDistributed.broadcast",
        "MatMulAllReduce",
        "AllGatherMatmul",
        "NeighborExchange",
        "Distributed.isend",
        "InnerCommAllReduce",
    ],
)
def test_collectives_are_known_in_every_spelling(name: str) -> None:
    assert is_collective(name)


@pytest.mark.parametrize(
    "name",
    [
        "BroadcastTo",
        "ReduceSum",
        "ReduceAll",
        "Gather",
        "GatherD",
        "ScatterNd",
        "Torch.broadcast_to",
        "ReduceMean",
        "Functional.gather",
        "Tensor.scatter_",
        "SparseGatherV2",
        "Add",
    ],
)
def test_operators_that_sound_like_collectives_are_none(name: str) -> None:
    assert not is_collective(name)


def test_optimizers_write_in_place() -> None:
    for name in ("ApplyMomentum", "Adam", "AdamWeightDecay", "FusedAdamW", "ApplyAdamD", "SGD", "Lamb"):
        assert is_optimizer(name)
    assert not any(map(is_optimizer, ("MatMul", "AdaptiveAvgPool2D", "LambdaRank", "ApplyRotaryPosEmb")))
    assert all(map(writes_in_place, ("Assign", "Tensor.add_", "HcomAllReduce", "AssignAdd")))
