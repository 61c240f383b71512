"""Commands that show tensors and compare them, as they are typed."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

import ingest
from bench.steps import commit_tables, make_tables
from ingest.api import DumpStore, open_store
from ingest.cli import show
from ingest.cli.compare_report import print_comparison, say_summary
from ingest.cli.show import choose_tensor, show_whole
from ingest.questions.compare.result import (
    ComparedInput,
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    Verdict,
)
from ingest.reader.tensor import Tensor
from tests.cli import Answer, strict_json
from tests.flips import flip
from tests.replicas import Replicas
from tests.services import served_watcher
from tests.stores import DumpLibrary, MadeDump, MadeRun, asked_dump, ingest_directly, store_of, tensor_name
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.opening import open_objects, resolve

# `dump-ingest show`: a tensor with the context of its operator.


class Show(Protocol):
    """Runs the command with these options and returns what it printed to stdout and stderr."""

    def __call__(self, store: Path, name: str, /, **options: Any) -> tuple[str, str]: ...


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    """The command, within this process."""
    monkeypatch.delenv("DUMP_INGEST_CONFIG", raising=False)

    def run(store: Path, name: str, /, **options: Any) -> tuple[str, str]:
        show.show_command(str(store), name, **options)
        printed = capsys.readouterr()
        return printed.out, printed.err

    return run


def test_json_has_the_context(shown: Show, nan_store: Path) -> None:
    row = strict_json(shown(nan_store, "Log.*.output.0", rank=1, step=2, json=True)[0])
    assert row["source_line"] == {
        "file": "/srv/train/nan_train.py",
        "line": 45,
        "code": "return -(self.log(self.sig(self.net(x)) + shift)).mean()",
        "of": "op",
        "matched": "exact",
        "op": "Default/net-LogLoss/Log-op0",
        "source": "rank_1/graphs/ms_output_trace_code_graph_0.ir",
    }
    assert [frame["line"] for frame in row["stack"]] == [86, 87, 44, 45]
    assert row["operator"] == "Default/net-LogLoss/Log-op0"
    assert row["position"] == 19
    assert (row["candidates"], row["parent"], row["kernel_args"]) == ([], None, None)


def test_arguments_are_printed(shown: Show, made: MadeDump, store: Path) -> None:
    made.add(np.ones(2, np.float32))
    made.add(b'{"transpose_a": "False", "transpose_b": "\\u001b[2J"}', "MatMul.net_MatMul-op0.json")
    ingest_directly(made.root, store)
    text, said = shown(store, "MatMul*", rank=0, step=0)
    assert "kernel_args      transpose_a: False\nkernel_args      transpose_b: \\x1b[2J\n" in text
    assert said == ""


def test_neighbours_are_printed(shown: Show, nan_store: Path) -> None:
    text, _ = shown(nan_store, "Log.*.output.0", rank=1, step=2)
    assert "\nread_by          ReduceMean.Default_net-LogLoss_ReduceMean-op0.input.0\n" in text
    text, _ = shown(nan_store, "Log.*.input.0", rank=1, step=2)
    assert "\nwritten_by       Add." in text


def test_places_of_nan_and_percentiles_are_printed(shown: Show, nan_store: Path) -> None:
    text, _ = shown(nan_store, "Log.*.output.0", rank=1, step=2)
    assert "\nnot finite       2 of 24: [2, 1] NaN, [4, 3] NaN\n" in text
    assert "\n  axis 1         2 of 4 positions: 1 (1), 3 (1)\n" in text
    assert "50%=-0.663061" in text


def test_a_slice_is_printed_and_saved(shown: Show, nan_store: Path, tmp_path: Path) -> None:
    (tensor,) = open_store(nan_store).tensors("Log.*.output.0", rank=1, step=2)
    expected = tensor.read()[3:5, :]
    row = strict_json(shown(nan_store, tensor.name, rank=1, step=2, at="3:5,:", json=True)[0])
    assert np.array_equal(np.array(row["values"], np.float32), expected, equal_nan=True)
    text, _ = shown(nan_store, tensor.name, rank=1, step=2, at="3:5,:")
    assert "\n[3:5,:]  2x4\n" in text
    shown(nan_store, tensor.name, rank=1, step=2, at="3:5,:", save=tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), expected, equal_nan=True)


def test_a_sample_is_called_one(shown: Show, dumps: DumpLibrary, tmp_path: Path) -> None:
    """Otherwise the statistics of 200 elements would pass for those of a tensor."""
    dump = asked_dump(dumps, tmp_path / "dump")
    store = store_of(dump, tmp_path / "s", iteration="2", e2e={"sample_mode": 1, "sample_num": 100})
    name = store.tensors("Log.*.output.0", rank=1)[0].name
    out, _ = shown(tmp_path / "s", name, rank=1, step=2)
    assert "sample           the first and the last 100 elements" in out
    out, _ = shown(tmp_path / "s", name, rank=1, step=2, json=True)
    assert strict_json(out)["sample"] == 100


def test_a_window_is_a_table_with_the_names_of_its_rows(nan_store: Path, answer: Answer) -> None:
    log = (nan_store, "Log.*.output.0", "--rank", 1, "--step", 2)
    head, first, *rest = answer("show", *log, "--window", "2:4,:2").stdout.splitlines()
    assert head.split() == ["0", "1"]
    assert first.split() == ["[2]", "-0.57691264", "nan"]
    assert len(rest) == 1
    printed = answer("show", *log, "--window", "2:4,:2", "--json").json
    (tensor,) = open_store(nan_store).tensors(rank=1, step=2, name="Log.*.output.0")
    assert printed == ingest.window(tensor, 2, 0, 2, 2)
    assert "does not go with" in answer("show", *log, "--window", ":,:", "--at", ":", code=2).stderr


LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


@pytest.fixture(scope="module")
def one_step() -> DumpStore:
    """One rank, one step."""
    made = Replicas()
    made.put(0, 3, {"Adam.w.input.0": 1, "Adam.w.input.1": 2, "Mul.a[0].output.0": 3})
    return made.store


def test_rank_and_step_may_be_left_out_if_there_is_one(one_step: DumpStore) -> None:
    assert choose_tensor(one_step, "Mul.*", None, None, None).name == "Mul.a[0].output.0"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("Adam.*", "2 tensors that match 'Adam.*':\n    graph", "--graph tells graphs apart"),
        ("adam.w.input.9", "has no tensor 'adam.w.input.9'", "Similar: Adam.w.input."),
        ("Nothing at all", "rank 0 step 3 has no tensor", "dump-ingest ls STORE --tensors"),
    ],
)
def test_what_fits_none_or_several_is_named(one_step: DumpStore, name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        choose_tensor(one_step, name, None, None, None)
    assert message in error.value.message
    assert hint in error.value.hint


def test_with_several_ranks_or_steps_one_must_be_named(nan_store: Path) -> None:
    store = open_store(nan_store)
    with pytest.raises(UsageError, match="there are 2 ranks") as error:
        choose_tensor(store, LOG, None, 2, None)
    assert error.value.hint == "Name one with --rank: 0-1."
    with pytest.raises(UsageError, match="rank 1 has 3 steps") as error:
        choose_tensor(store, LOG, 1, None, None)
    assert error.value.hint == "Name one with --step: 1-3."
    assert choose_tensor(store, LOG, 1, 2, None).statistics.nan_count == 2
    with pytest.raises(UsageError):
        choose_tensor(store, LOG, 7, None, None)


@pytest.fixture
def piece(made: MadeDump, store: Path) -> Tensor:
    """Rows 0 and 1 of a matrix; rank 1 has rows 2 and 3."""
    for rank in range(2):
        values = np.arange(6, dtype="<f4").reshape(2, 3) + 6 * rank
        made.add(values, tensor_name("Mul.m", time=1), rank=rank, step=1)
    ingest_directly(made.root, store)
    return open_store(store).tensors(rank=0)[0]


@pytest.mark.parametrize(("placement", "at"), [("shard 7", None), ("nonsense", None), ("shard 0", "9:")])
def test_what_does_not_fit_is_refused(piece: Tensor, placement: str, at: str | None) -> None:
    with pytest.raises(UsageError):
        show_whole(piece, placement, f"{at},5" if at else None, None, json=False)


# `dump-ingest ls` as it is typed.


def test_problems_are_listed_with_their_reasons(made: MadeDump, store: Path, answer: Answer) -> None:
    made.add(b"no npy")
    ingest_directly(made.root, store)
    (row,) = answer("ls", store, "--problems", "--json").json
    assert row["kind"] == "quarantined"
    assert row["problem"] in answer("ls", store, "--problems").stdout


def test_a_rank_from_two_dumps_is_warned_of(
    made: MadeDump, store: Path, tmp_path: Path, answer: Answer
) -> None:
    """As two runs that were mixed by mistake, or a dump that was moved."""
    made.add(b"x", "file.txt", step=0)
    ingest_directly(made.root, store)
    assert answer("ls", store).stderr == ""
    other = MadeDump(tmp_path / "other")
    other.add(b"x", "file.txt", step=4)
    ingest_directly(other.root, store)
    text = " ".join(answer("ls", store).stderr.split())
    assert "rank 0 comes from 2 dump directories" in text
    assert str(other.root) in text.replace(" ", "")
    assert {row["root"] for row in answer("ls", store, "--json").json} == {str(made.root), str(other.root)}


def test_watchers_of_other_stores_are_not_shown(
    nan_store: Path, made: MadeDump, tmp_path: Path, answer: Answer
) -> None:
    made.add(np.ones(3))
    with served_watcher(made.root, tmp_path / "other.zarr") as (url, service):
        service.tick()
        done = answer("ls", nan_store, "--watchers", url)
        assert answer("ls", nan_store, "--watchers", url, "--json").json == []
    assert (done.stdout, done.stderr) == ("", "the watchers that answer write to other stores\n")


# `dump-ingest export` as it is typed.


def test_tensors_that_gc_removed_are_counted(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    store = Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))
    answer("gc", store, "--tensors-around-anomalies", 0, "--apply")
    done = answer("export", store, tmp_path / "out", "--rank", 0, "--step", 1, code=4)
    assert "not exported: rank 0 step 1: 243 files: the tensors were removed" in done.stderr


def test_a_choice_of_nothing_is_said_with_what_is_near(
    nan_store: Path, answer: Answer, tmp_path: Path
) -> None:
    printed = answer("export", nan_store, tmp_path / "out", "--op-type", "log").stderr
    assert (
        "warning: no tensor fulfils the conditions\nhint: No tensor has the op_type log; case matters: Log"
        in printed
    )
    assert "0 files, 0 B" in printed


def test_whole_tensors_are_written_and_open_ones_are_named(
    nan_store: Path, answer: Answer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("export", nan_store, out, "--step", 2, "--name", "Parameter.*")
    done = answer(*words, "--unsharded", code=4)
    assert "tensors, " in done.stderr
    assert f"in 1 file in {out}" in done.stderr
    assert "not exported: " in done.stderr
    assert "how the ranks hold it is not known; by the shapes of its pieces: " in done.stderr
    assert "  Name the layout with --placement or --layout-map;" in done.stderr
    assert [path.name for path in out.iterdir()] == ["step2.safetensors"]
    assert "exists" in answer(*words, "--unsharded", code=2).stderr
    layout_map = tmp_path / "map.yaml"
    layout_map.write_text('placements: [{name: "Parameter.*", a: "partial sum"}]\n')
    rows = answer(*words, "--layout-map", layout_map, "--overwrite", "--json").json
    assert {(row["placement"], row["why"]) for row in rows} == {("partial sum", "given")}


def test_words_that_do_not_fit_are_refused(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    words = ("export", nan_store, tmp_path / "out")
    both = answer(*words, "--placement", "shard 0", "--layout-map", tmp_path / "map.yaml", code=2)
    assert "both say how ranks hold tensors" in both.stderr
    assert "--unsharded takes all ranks" in answer(*words, "--unsharded", "--rank", 0, code=2).stderr
    nothing = answer(*words, "--unsharded", "--name", "nothing")
    assert "no tensor fulfils the conditions" in nothing.stderr


# `dump-ingest compare` as it is typed, and what it prints.


def test_differences_are_listed_and_end_with_5(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    done = answer(
        "compare", f"{nan_store}@0,2", f"{nan_store}@1,2", "--top", 3, "--html", tmp_path / "o.html", code=5
    )
    counts, worst = done.stdout.split("\n\n")
    assert counts.split("\n")[1].split() == ["0", "|", "1", "2", "130", "113"]
    assert worst.split("\n")[1].split()[4:6] == ["different", "Log.Default_net-LogLoss_Log-op0.output.0"]
    assert len(worst.strip().split("\n")) == 4
    assert "first difference: step 2, rank 0: MatMul" in done.stderr
    assert "verdict: different" in done.stderr
    assert (tmp_path / "o.html").read_text().startswith("<!DOCTYPE html>")


def test_guesses_are_written_for_map(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    """Without any guess, too: a script need not look first."""
    path = tmp_path / "map.yml"
    answer("compare", f"{nan_store}@0,1", f"{nan_store}@0,1", "--suggest-map", path)
    answer("compare", f"{nan_store}@0,1", f"{nan_store}@0,1", "--map", path)
    missing = answer("compare", nan_store, nan_store, "--suggest-map", tmp_path / "no" / "map.yml", code=2)
    assert "--suggest-map takes the name of a file" in missing.stderr


def test_tree_of_a_dump_is_declared_as_for_ingest(tmp_path: Path, answer: Answer) -> None:
    for name, last in (("a", 2), ("b", 3)):
        (tmp_path / name / "r0" / "s1").mkdir(parents=True)
        np.save(tmp_path / name / "r0" / "s1" / "fc.npy", np.array([1, last], np.float32))
    sides = tmp_path / "a", tmp_path / "b"
    done = answer("compare", *sides, "--layout", "r{rank}/s{step}/{module}.npy", code=5)
    assert "Module.fc.fc.output.0" in done.stdout
    assert "no dump of a known layout" in answer("compare", *sides, code=2).stderr


def test_over_steps_the_tensors_that_differ_first_come_first(tmp_path: Path, answer: Answer) -> None:
    for name, changed in (("a.zarr", 0), ("b.zarr", 1)):
        objects = open_objects(resolve(str(tmp_path / name)))
        for step in range(3):
            made = make_tables(StepKey(0, 0), ["op0", "op1"])
            made.statistics[1, FIELDS.index("l2_norm")] = 4.0 - changed * step
            made.digest[1, 0] += changed * step
            commit_tables(objects, StepKey(0, step), made)
    sides = [tmp_path / "a.zarr@0", tmp_path / "b.zarr"]
    shown = answer("compare", *sides, "--over-steps", code=5)
    assert shown.stdout.splitlines()[1].split() == ["MatMul.op1.output.0", "step", "1", "0", "0.25", "0.5"]
    assert "1 of 2 tensors differ" in shown.stderr
    rows = answer("compare", *sides, "--over-steps", "--json", code=5).json
    assert [row["error"] for row in rows] == [0, 0, 0, 0, 0.25, 0.5]
    of_max = answer("compare", *sides, "--over-steps", "--stat", "max", "--json", code=5).json
    assert [row["error"] for row in of_max] != [row["error"] for row in rows]
    assert "Add --over-steps" in answer("compare", *sides, "--stat", "max", code=2).stderr
    assert "no tensor differs" in answer("compare", sides[0], sides[0], "--over-steps").stdout
    for words, problem in (
        ((tmp_path / "a.zarr@0,1", sides[1]), "about all steps"),
        ((*sides, "--op-type", "MatMul"), "by --name alone"),
        ((sides[0], tmp_path / "b.zarr@1"), "one rank"),
        ((*sides, "--html", tmp_path / "page.html"), "--html has no effect"),
        ((*sides, "--thresholds", tmp_path / "limits.yml"), "--thresholds has no effect"),
    ):
        assert problem in answer("compare", *words, "--over-steps", code=2).stderr


EQUAL = ComparedTensor(
    StepKey(0, 1),
    StepKey(0, 1),
    0,
    "Log.a",
    "Log.a",
    "0",
    "Log",
    "output",
    "f4",
    "f4",
    (2, 3),
    (2, 3),
    Verdict.EQUAL,
)
FAR = replace(
    EQUAL, number=1, name_a="Exp.b", name_b="Exp.c", dtype_b="f2", verdict=Verdict.DIFFERENT, reason="far"
)
ONLY = replace(EQUAL, number=2, name_b="", dtype_b="", shape_b=None, verdict=Verdict.ONLY_A)


def comparison(*tensors: ComparedTensor, unmatched_matter: bool = True) -> Comparison:
    counts = {verdict: sum(tensor.verdict == verdict for tensor in tensors) for verdict in Verdict}
    step = ComparedStep(EQUAL.key_a, EQUAL.key_b, counts)
    return Comparison("a", "b", (step,), tensors, None, unmatched_matter=unmatched_matter)


def tables(text: str) -> list[list[str]]:
    return [[" ".join(line.split()) for line in table.splitlines()] for table in text.split("\n\n")]


def test_tensors_that_are_not_equal_are_listed_the_worst_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(comparison(EQUAL, ONLY, FAR), top=10)
    counts, tensors = tables(capsys.readouterr().out)
    assert counts == ["rank step equal different only in A", "0 1 1 1 1"]
    assert tensors[1] == "0 1 different Exp.b | Exp.c f4 | f2 2x3 - - - - - far"
    assert tensors[2].startswith("0 1 only in A Log.a f4 2x3")
    assert len(tensors) == 1 + 2


def test_a_summary_names_the_first_difference_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    compared = replace(
        comparison(EQUAL, FAR, FAR),
        first=FirstDifference(
            replace(FAR, io="input"),
            (
                ComparedInput("Exp.b", Verdict.DIFFERENT, "far", value_a="0.055", value_b="0.05"),
                ComparedInput("Exp.w", Verdict.DIFFERENT, "apart", written_in_place=True),
                ComparedInput("Exp.x", Verdict.EQUAL),
            ),
        ),
        only_b=tuple(StepKey(0, step) for step in range(26)),
        notes=("a note",),
    )
    say_summary(compared, top=1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "missing: rank 0 step 0 is only in B"
    assert lines[24:] == [
        "missing: 2 more steps are only in B",
        "note: a note",
        "2 tensors are not equal, the worst 1 shown (--top N, --all, --html FILE)",
        (
            "first difference: step 1, rank 0: Exp.b: 0.055 instead of 0.05; "
            "1 of the other 2 inputs differs or could not be compared"
        ),
        "  also Exp.w: apart (written in place)",
        "verdict: different",
    ]


@pytest.mark.parametrize(
    ("tensors", "verdict"),
    [
        (
            (EQUAL, replace(EQUAL, verdict=Verdict.CLOSE), ONLY),
            "2 tensors that both sides have are within the limits",
        ),
        ((EQUAL, ONLY), "1 tensor that both sides have is equal"),
        ((EQUAL, FAR, ONLY), ""),
        ((ONLY,), ""),
    ],
)
def test_a_verdict_says_it_only_where_it_holds(
    tensors: tuple[ComparedTensor, ...], verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say_summary(comparison(*tensors), top=None)
    assert capsys.readouterr().err == f"verdict: different{verdict and '; the '}{verdict}\n"


# `audit`: healthy dumps are quiet, and what does not follow from its inputs is named with its place.


#: Healthy dumps, and the least share of their bytes that is proved.
HEALTHY = {
    "dtypes-1rank": 0.9,
    "lenet-4rank": 0.85,
    "nan-log-2rank": 0.85,
    "nan-mask-1rank": 0.0,
    "inf-explode-1rank": 0.0,
    "tinybert-2rank": 0.75,
    "msprobe-26.2.0-pytorch-cpu/ddp-2-ranks": 0.0,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_dumps_are_quiet(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    archive, _, below = name.partition("/")
    ingest_directly(dumps[archive] / (below or "dump"), store)
    answer = ingest.audit(ingest.open_store(store))
    assert answer.failures == ()
    assert answer.proved_nbytes >= HEALTHY[name] * answer.nbytes


def test_a_flipped_bit_of_a_product_is_named(dumps: DumpLibrary, tmp_path: Path, answer: Answer) -> None:
    dump, store = tmp_path / "dump", tmp_path / "run.zarr"
    shutil.copytree(dumps["nan-log-2rank"] / "dump", dump)
    for path in dump.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    flip(dump, "MatMul.*l2-Dense*.output.0.*", rank=1, step=1, element=2, bit=28)
    ingest_directly(dump, store)
    (failure,) = ingest.audit(ingest.open_store(store)).failures
    assert (failure.rank, failure.steps, failure.identity) == (1, (1,), "matmul")
    assert (failure.where, failure.cause, failure.level) == ("element", "flipped bit", "shown")
    shown = answer("audit", store, code=5)
    assert "1 of " in shown.stdout
    assert answer("audit", store, "--rank", 0).stderr == "nothing fails\n"


def test_a_bit_that_flips_between_two_operators_is_named(
    dump_copy: Callable[[str], Path], store: Path, answer: Answer
) -> None:
    dump = dump_copy("lenet-1rank") / "dump"
    ingest_directly(dump, store)
    shared = next(
        tensor
        for tensor in ingest.open_store(store).tensors(rank=0, step=1, io="output")
        if tensor.op_type == "ReLU" and len(tensor.consumers) > 1
    )
    read = shared.consumers[0].tensor
    written = "MatMul.*fc1-Dense_MatMul-op0.*.output.0.*"  # too little for a limit, and no reader sees it
    flip(dump, written, rank=0, step=1, element=5, bit=3)
    flip(dump, f"{read.op_type}.{read.op_name}.*.input.{read.slot}.*", rank=0, step=1, element=0, bit=3)
    other = store.with_name("flipped.zarr")
    ingest_directly(dump, other)
    failures = ingest.audit(ingest.open_store(other)).failures
    assert {(each.identity, each.cause, each.where) for each in failures} == {
        ("copy", "flipped bit", "element")
    }
    assert {each.name for each in failures} > {read.name}
    assert any("fc1-Dense_MatMul-op0.output.0" in each.name for each in failures)
    assert "bit 3" in answer("audit", other, code=5).stdout


def products(run: MadeRun, steps: int, *, ranks: int = 2, wrong: dict[int, list[int]]) -> None:
    """Dump four products in each step and rank; of a rank that is wrong, a row of these is doubled."""
    random = np.random.default_rng(0)
    for step in range(steps):
        for rank in range(ranks):
            for number in range(4):
                a, b = (random.normal(size=(16, 16)).astype(np.float32) for _ in range(2))
                c = a @ b
                if number in wrong.get(rank, []):
                    c[5] *= 2
                run.op(f"MatMul.product{number}", [a, b], [c], rank=rank, step=step)


def test_repeated_faults_of_one_rank_are_one_finding(made: MadeDump, store: Path, answer: Answer) -> None:
    products(MadeRun(made), 3, wrong={1: [0, 2, 3]})
    ingest_directly(made.root, store)
    found = answer("audit", store, "--json", code=5).json
    (failure,) = found["failures"]
    assert (failure["rank"], failure["steps"], failure["where"]) == (1, [0, 1, 2], "row")
    assert (failure["follows"], failure["failed"]) == (2, 9)
    assert failure["what"].endswith(
        f"host {failure['host']}, rank 1: 9 products in 3 steps: suspect hardware"
    )
    assert found["tensors"] == found["proved"] + 9 + sum(
        share["tensors"] for share in found["coverage"] if not share["is_proved"]
    )


def test_what_all_ranks_compute_alike_is_no_fault_of_hardware(made: MadeDump, store: Path) -> None:
    products(MadeRun(made), 3, wrong={0: [1], 1: [1]})
    ingest_directly(made.root, store)
    found = ingest.audit(ingest.open_store(store)).failures
    assert [(each.rank, each.steps, each.host) for each in found] == [(0, (0, 1, 2), ""), (1, (0, 1, 2), "")]
    assert not any("suspect" in each.what for each in found)


def test_the_budget_says_where_an_error_was_born_and_who_inherits_it(
    made: MadeDump, store: Path, answer: Answer
) -> None:
    random, run = np.random.default_rng(0), MadeRun(made)
    x, a, b = (random.normal(size=(16, 16)).astype(np.float32) for _ in range(3))
    y = x @ a
    y += np.float32(1e-3) * random.normal(size=y.shape).astype(np.float32)
    z = y @ b
    run.op("MatMul.rough", [x, a], [y])
    run.op("MatMul.fine", [y, b], [z])
    run.op("ReLU.last", [z], [np.maximum(z, 0)])
    ingest_directly(made.root, store)
    known = {each.name: each for each in ingest.audit_budget(ingest.open_store(store)).operators}
    rough, fine, last = (known[f"{name}.output.0"] for name in ("MatMul.rough", "MatMul.fine", "ReLU.last"))
    assert [each.depth for each in (rough, fine, last)] == [0, 1, 2]
    assert rough.born == pytest.approx(1e-3 / 4, rel=0.3)
    assert rough.inherited is None
    assert fine.units < 10
    assert fine.inherited == pytest.approx(rough.born, rel=0.5)
    assert last.born == 0
    assert last.total == pytest.approx(fine.total, rel=0.5)
    rows = answer("audit", store, "--budget", "--json").json["operators"]
    assert [row["name"] for row in rows] == [each.name for each in (rough, fine, last)]


def trained(run: MadeRun, steps: int, *, frozen: int = 0, rate: float = 0.1) -> None:
    """Dump five parameters and their gradients; SGD updates them, but for the first `frozen`."""
    random = np.random.default_rng(0)
    values = [random.normal(size=(16, 8)).astype(np.float32) for _ in range(5)]
    for step in range(steps):
        for number, value in enumerate(values):
            gradient = random.normal(size=(16, 8)).astype(np.float32)
            run.parameter(f"p{number}", value, step=step)
            run.op(f"Gradient.p{number}", (), [gradient], step=step)
            if number >= frozen:
                values[number] = value - np.float32(rate) * gradient


@pytest.mark.parametrize("frozen", [0, 2, 3])
def test_parameters_that_no_update_reaches_are_one_finding(made: MadeDump, store: Path, frozen: int) -> None:
    trained(MadeRun(made), 7, frozen=frozen)
    ingest_directly(made.root, store)
    found = ingest.audit(ingest.open_store(store)).failures
    assert [(each.cause, each.level, each.follows) for each in found] == (
        [("update does not happen", "shown", frozen - 1)] if frozen else []
    )
