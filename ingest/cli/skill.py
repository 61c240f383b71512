"""`dump-ingest skill`: what a coding agent should know of dump-ingest."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ingest.cli.printing import print_line, say
from workers.errors import UsageError


def command(
    install: Annotated[
        bool,
        typer.Option("--install", help="Write it below --to instead of printing it.", show_default=False),
    ] = False,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The directory of the agent's skills.")] = Path(
        ".claude/skills"
    ),
) -> None:
    """Print or install the skill with which coding agents find out what went wrong.

    [bold]dump-ingest skill --install[/]   for this project
    [bold]dump-ingest skill --install --to ~/.claude/skills[/]   for all of yours
    """
    text = files("ingest.agents").joinpath("SKILL.md").read_text("utf-8")
    if not install:
        print_line(text.rstrip("\n"))
        return
    path = to.expanduser() / "dump-ingest" / "SKILL.md"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as exc:
        raise UsageError(
            f"cannot write {path}: {exc.strerror or exc}", hint="--to names a directory."
        ) from exc
    say(f"wrote {path}")
