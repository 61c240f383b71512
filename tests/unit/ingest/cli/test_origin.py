"""`dump-ingest origin`: a short story on a terminal, one object for programs."""

import json
from pathlib import Path

import pytest

from tests import cli
from tests.dumps import DumpLibrary
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

KEYS = (
    "rank",
    "step",
    "graph",
    "op_type",
    "op_name",
    "source",
    "inputs",
    "outputs",
    "spread",
    "alternatives",
)


@pytest.fixture(scope="module")
def nan_store(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("origin") / "run.zarr"
    ingest_directly(dumps["nan-sqrt-2rank"] / "dump", store)
    return store


def test_story_names_the_operator_its_line_and_what_to_type_next(nan_store: Path) -> None:
    done = cli.run("origin", nan_store)
    lines = done.stdout.splitlines()
    assert lines[0] == "NaN was born in Sqrt (Default_net-SqrtLoss_Sqrt-op0) on rank 1, step 2, graph 0"
    assert lines[1].startswith("  /srv/train/nan_train.py:52  ")
    assert "  through AllReduce (Default_AllReduce-op1) from rank 1 to rank 0" in lines
    shown = done.stderr.split("values: dump-ingest ")[1].split("\n")[0].split()
    assert "nan_count        0" in cli.run(*shown).stdout


def test_json_is_one_strict_object(nan_store: Path) -> None:
    found = cli.run("origin", nan_store, "--json").json
    assert [key for key in KEYS if key not in found] == []
    assert (found["rank"], found["step"], found["op_type"]) == (1, 2, "Sqrt")
    assert found["outputs"][0]["nan_count"] == 2
    assert found["spread"]["collectives"][0]["to_ranks"] == [0]
    nothing = cli.run("origin", nan_store, "--step", 1, "--json").json
    assert [nothing[key] for key in KEYS] == [None] * 6 + [[], [], None, []]


def test_nothing_wrong_is_said(nan_store: Path) -> None:
    assert cli.run("origin", nan_store, "--step", 1).stdout.startswith("No NaN, Inf or overflow record")
    assert cli.run("origin", nan_store, "--step", 1, "--cause", "inf").stdout.startswith("No Inf")
    assert "max > 1e30" in cli.run("origin", nan_store, "--where", "max > 1e30").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cause", "nann"], "no cause 'nann'"),
        (["--cause", "nan", "--where", "max > 1"], "exclude each other"),
        (["--where", "__import__('os')"], "may not"),
        (["--rank", "9"], "no rank 9"),
        (["--step", "77"], "no step 77"),
    ],
)
def test_mistakes_are_explained(nan_store: Path, arguments: list[str], said: str) -> None:
    assert said in cli.run("origin", nan_store, *arguments, code=2).stderr


def test_names_cannot_talk_to_the_terminal(made: MadeDump, store: Path) -> None:
    run = MadeRun(made)
    run.op("Log.a\x1b[31m[bold]b", [numbers(1)], [numbers(float("nan"))])
    made.add(b"no npy", step=1)
    run.op("Log.b", [numbers(1)], [numbers(1)], step=1)
    ingest_directly(made.root, store)
    done = cli.run("origin", store)
    assert "\x1b[31m" not in done.stdout + done.stderr
    assert "Log (a\\x1b[31m[bold]b)" in done.stdout
    assert "left out: rank 0 step 1: partial" in done.stderr
    assert json.loads(cli.run("origin", store, "--json").stdout)["left_out"][0]["step"] == 1
