"""Check that the commands in deployment files are accepted by our command line, or by Dask's."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask.config
import pytest
from distributed.cli import dask_scheduler, dask_worker
from typer.main import get_command

from ingest.cli.app import app
from ingest.settings import load

_DASK: Mapping[str, Any] = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}


def needs(program: str) -> None:
    """Skip the test if a program is not installed. In CI, fail it."""
    if shutil.which(program) is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"not installed: {program} (make servers)")


def assert_parses(words: Sequence[str]) -> None:
    """Parse a command without running it. Fail on an unknown option or an invalid value."""
    program, *arguments = words
    match Path(program).name:
        case "dump-ingest":
            command: Any = get_command(app)
        case "dask":
            role, *arguments = arguments
            command = _DASK[role]
        case other:
            pytest.fail(f"{other} is not a program of the image")
    parent = None
    while True:
        parent = command.make_context(program, list(arguments), parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        # The parser of a group keeps the words that belong to its subcommand.
        program, command, arguments = command.resolve_command(parent, [*parent._protected_args, *parent.args])


def assert_settings(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Read variables as settings of this project and of Dask. Fail if one of them sets nothing."""
    with monkeypatch.context() as patched:
        for name in os.environ:
            if name.startswith("DUMP_INGEST_"):
                patched.delenv(name)
        for name, value in environment.items():
            patched.setenv(name, value)
        assert load().unknown_variables == ()
    for name in environment:
        if name.startswith("DASK_DISTRIBUTED__"):
            key = name.removeprefix("DASK_").lower().replace("__", ".")
            assert dask.config.get(key, default="missing") != "missing", name


def assignments(text: str) -> dict[str, str]:
    """Return the `NAME=value` lines of an environment file, including those that are commented out."""
    return dict(re.findall(r"^#?([A-Z][A-Z0-9_]*)=(.*)$", text, re.MULTILINE))
