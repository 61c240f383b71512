"""Options that several commands share, and how their values are taken."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ingest.cli.app import HelpfulCommand, app
from tests.cli import Answer


def parsed(words: list[str], cls: type) -> tuple[int, Any]:
    """Return the exit code, and what a command gets for these words or prints instead."""
    taken: dict[str, Any] = {}
    app = typer.Typer(add_completion=False)

    @app.command(cls=cls)
    def command(
        name: str | None = None,
        rank: Annotated[list[int] | None, typer.Option(min=0, max=9)] = None,
        share: float = 0.5,
        path: Path | None = None,
        *,
        flag: bool = False,
    ) -> None:
        taken.update(name=name, rank=rank, share=share, path=path, flag=flag)

    result = CliRunner().invoke(app, words)
    return result.exit_code, taken or result.output.replace(" ", "")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--name", "a b", "--rank", "3", "--rank", "9", "--flag"],
        ["--rank", "10"],
        ["--rank", "-1"],
        ["--rank", "three"],
        ["--rank", " 3"],
        ["--share", "0.25", "--path", "x"],
        ["--share", "half"],
        ["--name", ""],
    ],
)
def test_values_and_mistakes_are_those_of_typer(words: list[str]) -> None:
    assert parsed(words, HelpfulCommand) == parsed(words, typer.core.TyperCommand)


@pytest.mark.parametrize("words", [["ls", ""], ["export", "run.zarr", ""], ["ingest", "x", "--config", ""]])
def test_an_empty_path_is_not_the_working_directory(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "it is empty" in " ".join(result.output.replace("│", "").split())


def test_a_small_question_imports_neither_pydantic_nor_rich(nan_log: Path) -> None:
    code = (
        "import sys; from ingest.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'pydantic', 'rich', 'zarr', 'dask', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    )
    for words in (["ls"], ["origin"]):
        command = [sys.executable, "-c", code, *words, str(nan_log)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        assert answer.stderr.splitlines()[-1] == "[]", words


LOSS = "Neg.Default_net-LogLoss_Neg-op0.output.0"


def test_the_trend_of_the_loss_needs_no_name(nan_store: Path, answer: Answer) -> None:
    rows = json.loads(answer("trend", nan_store, "--role", "loss", "--stat", "mean", "--json").stdout)
    assert {row["name"] for row in rows} == {LOSS}
    (table,) = {
        answer("trend", nan_store, *words, "--role", "loss").stdout.partition("\n")[2]
        for words in (["*"], ["--name", "Neg*"], ["--regex", "^Neg"], [])
    }
    assert LOSS in table
    refused = answer("trend", nan_store, "*", "--name", "x", code=2)
    assert "exclude each other" in refused.stderr
    assert "'gradeint' is not a role" in answer("trend", nan_store, "--role", "gradeint", code=2).stderr


def test_roles_are_columns(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    condition = ("--where", "role == 'loss' and nan_count > 0")
    words = ("find", nan_store, *condition, "--columns", "rank,step,role", "--json")
    assert json.loads(answer(*words).stdout) == [
        {"rank": 1, "step": 2, "role": "loss"},
        {"rank": 1, "step": 3, "role": "loss"},
    ]
    exported = json.loads(
        answer(
            "export", nan_store, tmp_path / "out", "--role", "loss", "--rank", 1, "--step", 2, "--json"
        ).stdout
    )
    assert [Path(file["path"]).name.startswith("Neg.") for file in exported] == [True]
    heat = json.loads(answer("heatmap", nan_store, "--role", "loss", "--stat", "nan", "--json").stdout)
    assert {row["tensors"] for row in heat} == {1}
