"""`dump-ingest origin`: a short story on a terminal, one object for programs."""

import json
from pathlib import Path

import pytest

from tests.cli import Answer
from tests.dumps import DumpLibrary
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly


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
