"""Commands that ask a store, as they are typed."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml

import ingest
from ingest.cli import printing
from ingest.cli.exits import EXIT_DIFFERENT
from ingest.cli.printing import print_drawing
from ingest.questions import find
from ingest.questions.heatmap import HeatmapAnswer
from ingest.questions.question import Drawing
from tests.cli import Answer
from tests.damages import only
from tests.sharded_net import LAYOUT, Config, simulate, write
from tests.stores import DumpLibrary, MadeDump, MadeRun, ingest_directly, numbers, tensor_name

# `dump-ingest anomalies` as it is typed.


def test_one_nan_is_one_incident(found_store: Path, answer: Answer) -> None:
    done = answer("anomalies", found_store)
    headline, source, *_ = done.stdout.splitlines()
    assert headline.endswith("  NaN born in Log (Default_net-LogLoss_Log-op0) on rank 1, step 2")
    assert source.startswith("  /srv/train/nan_train.py:45  ")
    assert done.stderr == "1 incident: 1 critical\n"
    (row,) = answer("anomalies", found_store, "--json").json
    assert (row["id"], row["kind"], row["rank"]) == (headline.split()[1], "nan", 1)
    assert row["origin"]["op_type"] == "Log"
    assert answer("anomalies", found_store, "--id", row["id"], "--json").json == [row]


def test_steps_that_no_rule_has_seen_are_named(nan_store: Path, answer: Answer) -> None:
    """No finding there means nothing; NaN is known without rules."""
    done = answer("anomalies", nan_store, "--findings")
    assert done.stdout == ""
    assert done.stderr.startswith("0 findings\nnot evaluated: ranks 0-1, steps 1-3: ")
    done = answer("anomalies", nan_store)
    assert done.stderr.startswith("1 incident: 1 critical\nnot evaluated: rank 0, steps 1-3: ")


# `dump-ingest divergence` as it is typed.


WEIGHTS = "Momentum.opt-op0"


def fill(run: MadeRun, rank: int, step: int, *, flipped: bool = False) -> None:
    """Write what replicas share: weights, of which a bit may have flipped."""
    values = numbers(*range(step, step + 8))
    if flipped:
        values[3] += 1
    run.op(WEIGHTS, [values], rank=rank, step=step)


@pytest.fixture
def odd(made: MadeDump, store: Path) -> Path:
    """Three replicas for three steps; rank 2 is off in step 1."""
    run = MadeRun(made)
    for rank in range(3):
        for step in range(3):
            fill(run, rank, step, flipped=(rank, step) == (2, 1))
    ingest_directly(made.root, store)
    return store


def test_an_odd_rank_is_named_with_the_values_that_differ(odd: Path, answer: Answer) -> None:
    done = answer("divergence", odd, code=5)
    story, table, groups = done.stdout.split("\n\n")
    lines = story.splitlines()
    assert lines[0] == "rank 2 is off since step 1 (ranks 0-1 agree)"
    assert lines[1] == f"  first   {WEIGHTS}.input.0  (optimizer input)"
    assert lines[2].startswith("  file    rank_2/Net/0/1/Momentum.opt-op0.")
    assert lines[3].startswith("  values  l2_norm ")
    assert lines[4] == "  cause   flipped bit (shown): 1 of 8 elements, element [3]: bit 21"
    assert lines[5] == "  since   1 tensor in 1 step, agrees again after step 1"
    assert table.splitlines()[1].split()[:5] == ["2", "1", "1", "1", "yes"]
    assert table.splitlines()[1].endswith(f"optimizer input  {WEIGHTS}.input.0")
    assert groups.splitlines()[1].split()[0] == "0-2"


def test_what_a_rank_lacks_is_a_difference(made: MadeDump, store: Path, answer: Answer) -> None:
    run = MadeRun(made)
    for rank in range(3):
        for step in range(2):
            fill(run, rank, step)
            run.op("Momentum.opt-op1", [numbers(*range(8, 0, -1))], rank=rank, step=step)
            run.op("Momentum.opt-op2", [numbers(*range(0, 24, 3))], rank=rank, step=step)
            if rank < 2:
                run.op("AllReduce.sum-op0", [numbers(1)], [numbers(*range(9))], rank=rank, step=step)
    ingest_directly(made.root, store)
    done = answer("divergence", store, code=5)
    assert done.stdout.startswith("replicas do not hold the same tensors:\n")
    assert "missing" in done.stdout


def test_ranks_without_anything_in_common_cannot_be_compared(
    made: MadeDump, store: Path, answer: Answer
) -> None:
    run = MadeRun(made)
    for rank in range(2):
        run.op("MatMul.net-op0", (), [numbers(rank, 2, 3)], rank=rank)
    ingest_directly(made.root, store)
    assert "name them with --group." in answer("divergence", store).stderr


def test_that_nothing_could_be_compared_is_said_although_a_step_is_damaged(
    made: MadeDump, store: Path, answer: Answer
) -> None:
    run = MadeRun(made)
    for rank in range(3):
        run.op("MatMul.net-op0", (), [numbers(rank, 2, 3)], rank=rank)
    ingest_directly(made.root, store)
    shutil.rmtree(only(store, "rank_2/step_0/*/index"))
    done = answer("divergence", store, code=3)
    assert "left out: rank 2 step 0: damaged: index/" in done.stderr
    assert "note: nothing could be compared" in done.stderr


def test_only_replicas_by_the_mesh_are_compared(odd: Path, answer: Answer) -> None:
    found = answer("divergence", odd, "--mesh", "dp=3", "--json", code=5).json
    assert [(group["ranks"], group["how"]) for group in found["groups"]] == [([0, 1, 2], "told")]
    done = answer("divergence", odd, "--mesh", "tp=2,dp=2")  # rank 2 has no replica
    assert "replicas agree" in done.stdout
    assert "rank 2 is in no group" in done.stderr
    assert answer("divergence", odd, "--mesh", "tp=2", code=2).stderr.startswith(
        "error: --mesh tp=2: has 2 ranks, and the store has rank 2"
    )


def test_ranks_are_chosen_by_their_place_in_the_mesh(odd: Path, answer: Answer) -> None:
    rows = answer("ls", odd, "--mesh", "tp=2,dp=2", "-r", "dp=0", "--json").json
    assert {(row["rank"], *row["coordinates"]["tp"]) for row in rows} == {(0, 0, 2), (2, 1, 2)}
    assert answer("ls", odd, "--mesh", "dp=3", "-r", "2").stdout.splitlines()[1].split()[:3] == [
        "2",
        "dp",
        "2/3",
    ]
    tensors = answer("find", odd, "--mesh", "dp=3", "-r", "dp=1", "-n", "0", "--json").json
    assert {tensor["rank"] for tensor in tensors} == {1}
    assert "DUMP_INGEST_MESH=tp=2,dp=4" in answer("origin", odd, "-r", "dp=1", code=2).stderr
    assert "neither a rank nor a place" in answer("ls", odd, "-r", "-1", code=2).stderr


# `dump-ingest find` as it is typed.


LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_tensors_are_sorted_and_columns_chosen(nan_store: Path, answer: Answer) -> None:
    chosen = ("--columns", "step,name,nan_count")
    words = ("find", nan_store, "--name", "*.output.*", "--sort", "-nan_count,step", *chosen)
    done = answer(*words, "--limit", 3)
    assert [line.split() for line in done.stdout.splitlines()[:3]] == [
        ["step", "name", "nan_count"],
        ["2", LOG, "2"],
        ["3", LOG, "2"],
    ]
    rows = answer(*words, "--json").json
    assert list(rows[0]) == ["step", "name", "nan_count"]
    counts = [row["nan_count"] for row in rows]
    assert counts == sorted(counts, reverse=True)


def test_only_a_terminal_gets_a_part_unasked(
    nan_store: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "QUESTION", replace(find.QUESTION, limit=5))
    assert len(answer("find", nan_store, "--name", "Log.*").stdout.splitlines()) == 1 + 12
    monkeypatch.setattr(printing, "is_terminal", lambda: True)
    cut = answer("find", nan_store, "--name", "Log.*")
    assert len(cut.stdout.splitlines()) == 1 + 5
    assert cut.stderr == "12 tensors, the first 5 shown (--limit 0: all)\n"
    assert len(answer("find", nan_store, "--name", "Log.*", "--json").json) == 12


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--op-type", "log"], "No tensor has the op_type log; case matters: Log"),
        (["--op-type", "ReduceMeen"], "No tensor has the op_type ReduceMeen; near: ReduceMean"),
        (["--name", "log.*"], "Names are case-sensitive. In another case: Log.Default_net"),
        (["--where", "op_type == 'log'"], "No tensor has the op_type log; case matters: Log"),
        (["--name", "Lgo*"], "No tensor is named like Lgo*; near: Log.Default_net-LogLoss_Log-op0.input.0, "),
        (["--where", "rank == 7"], "The store has ranks 0-1 and steps 1-3."),
    ],
)
def test_nothing_found_has_a_hint(nan_store: Path, answer: Answer, options: list[str], hint: str) -> None:
    done = answer("find", nan_store, *options)
    assert f"hint: {hint}" in done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert answer("find", nan_store, *options, "--json").json == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sort", "nan_cout"], "Did you mean nan_count"),
        (["--columns", "xyz"], "--columns: 'xyz' is not a column"),
        (["--columns", ","], "names no column"),
        (["--sort", ""], "names no column"),
        (["--name", "a", "--regex", "b"], "--name and --regex exclude each other"),
        (["--regex", "("], "--regex '(':"),
        (["--consolidated"], "--consolidated takes a condition"),
        (["--consolidated", "--where", "max > 1", "--rank", "1"], "--consolidated does not go with --rank"),
        (["--where", "max >"], "max >"),
    ],
)
def test_mistakes_are_explained(nan_store: Path, answer: Answer, options: list[str], message: str) -> None:
    assert message in answer("find", nan_store, *options, code=2).stderr


@pytest.fixture
def tensors(made: MadeDump, store: Path) -> ingest.Tensors:
    """Five tensors of one element each; that of the second is NaN."""
    for number, value in enumerate((2.0, np.nan, 3.0, 1.0, 2.0)):
        made.add(np.array([value]), tensor_name(f"Add.net_Add-op{number}"))
    ingest_directly(made.root, store)
    return ingest.open_store(store).tensors()


@pytest.mark.parametrize(
    ("order", "expected"), [("max", "30421"), ("-max", "20431"), ("-max,-name", "24031"), ("slot", "01234")]
)
def test_unknown_values_come_last_either_way_and_equal_ones_stay(
    tensors: ingest.Tensors, store: Path, answer: Answer, order: str, expected: str
) -> None:
    rows = answer("find", store, f"--sort={order}", "--json").json
    assert "".join(row["op_name"][-1] for row in rows) == expected
    columns = answer("find", store, f"--sort={order}", "--columns", ",".join(rows[0]), "--json")
    assert columns.json == rows
    assert tensors[0].to_dict().keys() == rows[0].keys()


# `dump-ingest heatmap` as it is typed, and the field of ranks and steps that it draws.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cells", "1x2", "--values-only"), "--values-only does not go with --cells"),
        (("--cells", "0x2"), "is not a size"),
        (("--cells", "1x2", "--stat", "nonsense"), "is not a statistic"),
    ],
)
def test_what_is_wrong_is_named(nan_store: Path, answer: Answer, words: tuple[str, ...], said: str) -> None:
    assert said in answer("heatmap", nan_store, *words, code=2).stderr


def field(
    values: Sequence[Sequence[float]],
    *,
    bad: Sequence[Sequence[float]] | None = None,
    statistic: str = "max",
) -> xr.DataArray:
    """Return a heatmap of these values of two tensors of 100 elements together, (rank, step).

    NaN is a gap unless `bad` counts NaN or Inf there.
    """
    array = np.array(values, float)
    non_finite = np.zeros(array.shape) if bad is None else np.array(bad, float)
    present = np.isfinite(array) | (non_finite > 0)
    axes = ("rank", "step")
    return xr.DataArray(
        array,
        dims=axes,
        coords={
            "rank": np.arange(array.shape[0]),
            "step": np.arange(array.shape[1]) + 10,
            "tensors": (axes, present.astype(int)),
            "elements": (axes, np.where(present, 100.0, np.nan)),
            "non_finite": (axes, np.where(present, non_finite, np.nan)),
        },
        attrs={
            "statistic": statistic,
            "aggregate": "sum" if statistic == "nan_count" else "max",
            "tensors": 2,
            "of": "x",
        },
    )


def drawing(of: xr.DataArray) -> Drawing:
    """Return the lines that a terminal shows of a heatmap."""
    _, lines = HeatmapAnswer(of).report()
    assert isinstance(lines, Drawing)
    return lines


def test_none_some_and_all_elements_cannot_be_confused(capsys: pytest.CaptureFixture[str]) -> None:
    print_drawing(drawing(field([[0, 1, 9, 10, 99, 100, np.nan]], statistic="nan_count")), 0)
    _, line, legend = capsys.readouterr().out.splitlines()
    assert line.split() == ["0", "··░░▒▒▒▒▓▓██--"]
    assert legend == "· 0   ░ 1 to 4   ▒ 5 to 21   ▓ 22 to 99   █ all elements   - no such tensor"


def test_gaps_and_bad_values_are_marked_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    print_drawing(drawing(field([[1, np.nan], [1, np.nan]], bad=[[0, 0], [0, 2]])), 0)
    _, first, second, legend = capsys.readouterr().out.splitlines()
    assert first.split() == ["0", "██--"]
    assert second.split() == ["1", "██!!"]
    assert legend == "█ 1   ! NaN or Inf   - no such tensor"


def test_many_steps_share_cells_and_a_bad_one_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    bad = np.zeros((1, 1000))
    bad[0, 503] = 1
    print_drawing(drawing(field(np.ones((1, 1000)).tolist(), bad=bad.tolist())), 0)
    cells = capsys.readouterr().out.splitlines()[1].split()[1]
    assert len(cells) == 60
    assert cells.count("!") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--aggregate", "mean"), "--aggregate"), (("--role", "loss"), "conditions")],
    ids=["aggregate", "conditions"],
)
def test_what_needs_more_is_refused(
    nan_store: Path, answer: Answer, words: tuple[str, ...], said: str
) -> None:
    refused = answer("heatmap", nan_store, "*", "--values-only", *words, code=2)
    assert f"--values-only does not go with {said}" in refused.stderr


# `dump-ingest layout`, and the options of `compare` and `show` for runs that are cut.


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`two`: two ranks of tensor parallelism with a missing reduction; `one`: the same net on one.

    `replicas`: two ranks of data parallelism, of which one gradient is not reduced.
    """
    root = tmp_path_factory.mktemp("stores")
    for name, config in (
        ("two", Config(2, 1, frozenset(["BUG missing reduction"]), 1)),
        ("one", Config(steps=1)),
        ("replicas", Config(1, 2, frozenset(["BUG a gradient is not reduced"]), 1)),
    ):
        write(root / "dumps" / name, simulate(config))
        ingest_directly(root / "dumps" / name, root / name, layout=LAYOUT)
    return root


def test_layout_names_what_looks_wrong(stores: Path, answer: Answer) -> None:
    done = answer("layout", stores / "replicas", code=EXIT_DIFFERENT)
    assert "missing reduction" in done.stdout
    plain = answer("layout", stores / "replicas", "--json", code=EXIT_DIFFERENT).json
    assert plain["findings"][0]["name"] == "Module..grad.param.layers.2.fc2.weight.output.0"
    assert plain["ranks"] == [0, 1]


def test_compare_across_layouts(stores: Path, tmp_path: Path, answer: Answer) -> None:
    page = tmp_path / "page.html"
    both = stores / "two", stores / "one"
    done = answer("compare", *both, "--html", page, code=EXIT_DIFFERENT)
    assert "blocks 0 (8+8+8 per rank)" in done.stdout
    assert "layers.1.norm2.output.0" in done.stderr
    assert "Layout" in page.read_text()
    assert "shape differs" in answer("compare", *both, "--rank-by-rank", code=EXIT_DIFFERENT).stdout


def test_show_puts_a_tensor_together(stores: Path, tmp_path: Path, answer: Answer) -> None:
    shown = "show", stores / "two", "Module..param.head.weight.output.0"
    saved = tmp_path / "x.npy"
    assert "19x16" in answer(*shown, "--placement", "shard 0", "--save", saved).stdout
    (whole,) = simulate(Config(steps=1))
    assert np.array_equal(np.load(saved), whole[0]["param.head.weight"])
    plain = answer(*shown, "--placement", "shard 0", "--at", "0,:2", "--json").json
    assert (plain["shape"], len(plain["values"])) == ([19, 16], 2)
    assert "[[" in answer(*shown, "--placement", "shard 0").stdout
    assert "how the ranks hold it is not known" in answer(*shown, "--unsharded", code=2).stderr


# `dump-ingest localize` as it is typed.


def test_tensors_that_differ_are_listed_with_their_place(sketched_store: Path, answer: Answer) -> None:
    sides = (f"{sketched_store}@1,2", f"{sketched_store}@0,2")
    done = answer("localize", *sides, "--op-type", "Log", code=5)
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == ["name", "shape", "blocks", "differ", "elements", "positions"]
    assert [line.split()[-1] for line in lines] == ["3]", "3]"]
    assert "all that differs is among the elements\n" in done.stderr  # and no positions are known
    made = answer("localize", *sides, "--op-type", "Log", "--json", code=5).json
    assert [(tensor["blocks"], tensor["ranges"][0]["last"]) for tensor in made["tensors"]] == [
        (1, [5, 3])
    ] * 2


def test_equal_steps_are_no_difference(sketched_store: Path, answer: Answer) -> None:
    side = f"{sketched_store}@0,1"
    assert "243 tensors are equal" in answer("localize", side, side).stderr
    assert "STORE@RANK,STEP" in answer("localize", sketched_store, side, code=2).stderr


# `dump-ingest next`: the configuration goes to stdout or a file, everything else to stderr.


def test_a_file_is_written(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    out = tmp_path / "data_dump.json"
    done = answer("next", nan_store, "--out", out, "--budget", "1MB", "--path", "/data/second")
    assert done.stdout == ""
    assert json.loads(out.read_text())["common_dump_settings"]["path"] == "/data/second"
    assert str(out) in done.stderr
    assert "cannot be written" in answer("next", nan_store, "--out", tmp_path, code=2).stderr


@pytest.mark.parametrize("purpose", ["origin", "divergence", "tensor"])
def test_steps_that_could_not_be_examined_are_named(
    nan_store: Path, tmp_path: Path, answer: Answer, purpose: str
) -> None:
    damaged = tmp_path / "run.zarr"
    shutil.copytree(nan_store, damaged)
    shutil.rmtree(only(damaged, "rank_1/step_2/*/index"))
    names = ["Log.*"] if purpose == "tensor" else []
    code = 2 if purpose == "divergence" else 0
    stderr = answer("next", damaged, *names, "--for", purpose, code=code).stderr
    assert "; left out: rank 1 step 2: " in stderr
    assert "Warning" not in stderr


# `dump-ingest origin`: a short story on a terminal, one object for programs.


@pytest.fixture(scope="module")
def nan_sqrt(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("origin") / "run.zarr"
    ingest_directly(dumps["nan-sqrt-2rank"] / "dump", store)
    return store


def test_the_answer_leads_to_the_page_if_there_is_one(
    nan_sqrt: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "page" not in answer("origin", nan_sqrt, "--json").json
    monkeypatch.setenv("DUMP_INGEST_PAGE_URL", "https://dumps.example.com/")
    link = "https://dumps.example.com/runs/run.zarr/incidents?rank=1&step=2"
    assert answer("origin", nan_sqrt, "--json").json["page"] == link
    assert f"page: {link}" in answer("origin", nan_sqrt).stderr
    assert "page" not in answer("origin", nan_sqrt, "--step", 1, "--json").json


def test_names_cannot_talk_to_the_terminal(answer: Answer, made: MadeDump, store: Path) -> None:
    run = MadeRun(made)
    run.op("Log.a\x1b[31m[bold]b", [numbers(1)], [numbers(float("nan"))])
    made.add(b"no npy", step=1)
    run.op("Log.b", [numbers(1)], [numbers(1)], step=1)
    ingest_directly(made.root, store)
    done = answer("origin", store)
    assert "\x1b[31m" not in done.stdout + done.stderr
    assert "Log (a\\x1b[31m[bold]b)" in done.stdout
    assert "left out: rank 0 step 1: partial" in done.stderr
    assert json.loads(answer("origin", store, "--json").stdout)["left_out"][0]["step"] == 1


def test_the_whole_spread_is_printed_on_demand(nan_sqrt: Path, answer: Answer) -> None:
    text = answer("origin", nan_sqrt, "--graph", "text").stdout
    assert text.startswith("0  Sqrt (Default_net-SqrtLoss_Sqrt-op0), rank 1\n")
    dot = answer("origin", nan_sqrt, "--graph", "dot").stdout
    assert dot.startswith("digraph spread {\n")
    data = json.loads(answer("origin", nan_sqrt, "--graph", "text", "--json").stdout)
    assert len(data["spread_graph"]["edges"]) == dot.count(" -> ")
    assert len(data["spread_graph"]["nodes"]) > data["spread"]["operators"]


# `dump-ingest outliers` as it is typed.


def test_odd_channels_are_shown_and_written(made: MadeDump, store: Path, answer: Answer) -> None:
    values = np.random.default_rng(2).standard_normal((300, 260)).astype("<f4")
    values[:, 100] *= 50
    values[:, 200:204] = 0
    made.add(values, tensor_name(time=1), step=3)
    ingest_directly(made.root, store, sketches=True)
    heading, outlier, dead = answer("outliers", store).stdout.splitlines()
    assert heading.split()[:4] == ["kind", "axis", "position", "times"]
    assert outlier.split()[:3] == ["outlier", "1", "100"]
    assert outlier.split()[5] == "exact"
    assert "±6e-08" in answer("outliers", store, "--by", "l2_norm").stdout
    assert dead.split()[:3] == ["dead", "1", "200-203"]
    assert "1 of 1" in dead
    made_of = answer("outliers", store, "--kind", "dead", "--json").json
    assert [odd["positions"] for odd in made_of["positions"]] == [[200, 201, 202, 203]]
    quiet = answer("outliers", store, "--kind", "outlier", "--factor", 1000)
    assert "nothing unusual in 1 tensor" in quiet.stderr
    made.add(np.zeros(3, "<f4"), tensor_name(time=2), step=4)
    ingest_directly(made.root, store, sketches=True)
    none = answer("outliers", store, "--step", 4)
    assert none.stderr == "note: 1 tensor not examined: too small, not of floats, or all zeros\n"
    assert "not a measure" in answer("outliers", store, "--by", "mean", code=2).stderr


# `dump-ingest precision` as it is typed.


def test_tensors_without_a_histogram_are_not_called_lossless(nan_store: Path, answer: Answer) -> None:
    told = answer("precision", nan_store, "-f", "e4m3").stderr
    assert "no tensor that has a histogram would lose anything" in told
    assert "`dump-ingest sketch STORE` adds them" in told


# `dump-ingest rules` as it is typed.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Rules with a limit of its own, and one built-in rule that is switched off."""
    path = tmp_path / "rules.yml"
    path.write_text("rules:\n- {name: large, kind: range, max_le: 2}\n- {name: nan, enabled: false}\n")
    return path


def test_rules_in_effect_are_listed_with_their_origin(file: Path, answer: Answer) -> None:
    rows = {row["name"]: row for row in answer("rules", "list", "--rules", file, "--json").json}
    assert rows["large"]["origin"].startswith(str(file))
    assert (rows["nan"]["enabled"], rows["inf"]["enabled"]) == (False, True)
    done = answer("rules", "list", "--rules", file)
    heading = ["name", "kind", "severity", "enabled", "origin", "description"]
    assert done.stdout.splitlines()[0].split() == heading
    assert done.stderr.startswith("rule set ")


def test_rules_are_shown_as_a_file_would_hold_them(file: Path, answer: Answer, tmp_path: Path) -> None:
    shown = answer("rules", "show", "large", "--rules", file).stdout
    (rule,) = yaml.safe_load(shown)["rules"]
    assert (rule["name"], rule["kind"], rule["max_le"]) == ("large", "range", 2)
    (tmp_path / "again.yml").write_text(shown)
    answer("rules", "validate", tmp_path / "again.yml")
    assert answer("rules", "show", "large", "--rules", file, "--json").json == [rule]


def test_rules_are_tried_on_what_is_stored_and_nothing_is_written(
    nan_store: Path, file: Path, answer: Answer
) -> None:
    before = sorted(nan_store.rglob("*"))
    done = answer("rules", "test", nan_store, "--rules", file, "--rule", "l*")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[1:]}
    assert int(rows["large"][2]) > 0
    assert "nan" not in rows
    assert "6 steps of single ranks evaluated" in done.stderr
    assert answer("rules", "test", nan_store, "--rules", file, "--json").json["steps"] == 6
    assert sorted(nan_store.rglob("*")) == before


# `dump-ingest trampled`: which tensor, what differs, and what ran in between.


def test_a_trampled_tensor_is_named_with_what_ran_in_between(
    made: MadeDump, store: Path, nan_store: Path, answer: Answer
) -> None:
    run = MadeRun(made)
    run.op("C.watched", [numbers(3)], [numbers(1, 2)])
    run.op("B.second", (), [numbers(9, 2)])
    run.op("C.watched", (), [numbers(5, 2)])
    ingest_directly(made.root, store)
    lines = answer("trampled", store, code=5).stdout.splitlines()
    assert lines[0] == "rank 0, step 0: C.watched.output.0 is trampled: C.watched.output.0#1 differs"
    assert lines[1].startswith("  1 element, ")
    assert lines[2] == "  dumped in between: B (second)"
    assert answer("trampled", store, "--json", code=5).json[0]["between"] == ["B (second)"]
    assert answer("trampled", nan_store, "--step", 2).stderr == "no tensor changed without being written\n"


# `dump-ingest trend` as it is typed.


@pytest.mark.parametrize(("command", "colour"), [("trend", "1;31"), ("heatmap", "1;37;41")])
def test_colours_are_used_on_a_terminal_unless_they_are_not_wanted(
    command: str, colour: str, nan_store: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert f"\x1b[{colour}m!" in answer(command, nan_store, "Log.*").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    plain = answer(command, nan_store, "Log.*").stdout
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", plain)
    assert "!" in plain


@pytest.mark.parametrize("command", ["trend", "heatmap"])
def test_plots_are_written_and_need_nothing_else(
    command: str, nan_store: Path, answer: Answer, tmp_path: Path
) -> None:
    png, page = tmp_path / "plot.png", tmp_path / "plot.html"
    answer(command, nan_store, "ReduceMean*", "--png", png, "--html", page)
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert "data:image/svg+xml;base64," in page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)|https?://", page.read_text())
