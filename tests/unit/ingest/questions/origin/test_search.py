"""The first operator that gave NaN or Inf, by the order in which operators ran."""

import json
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest import open_store
from tests.damages import flip, only
from tests.dumps import DumpLibrary
from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, INF, Ask, operator, origin_of
from tests.pipeline import ingest_directly
from workers.errors import UsageError


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
