"""Values of the command line are the same with pydantic and without, and mistakes are left to typer."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ingest.cli.app import HelpfulCommand, app


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
