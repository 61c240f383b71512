"""Run a training script with a recorder, without changing it.

    DUMP_INGEST_RECORD=run-dump,black_box=8 python -m ingest.recording train.py --epochs 3
    DUMP_INGEST_RECORD=run-dump,of=outputs+gradients torchrun --nproc-per-node 2 -m ingest.recording train.py
    DUMP_INGEST_RECORD=run-dump torchrun --nproc-per-node 2 -m ingest.recording -m torchtitan.train ...

The variable names the directory, and arguments of `ingest.record`. Without it, the script runs as ever. See
`ingest.record_training` for what is recorded.
"""

from __future__ import annotations

import ast
import os
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ingest.environment import RECORD_VARIABLE
from ingest.recording.training import record_training
from workers.errors import UsageError


def options_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return the directory and the arguments of `ingest.record` that the variable names.

    >>> options_of("run-dump,black_box=8,keep=4GiB,of=outputs+gradients,overhead=0.03")
    ('run-dump', {'black_box': 8, 'keep': '4GiB', 'of': ['outputs', 'gradients'], 'overhead': 0.03})
    """
    directory, *pairs = text.split(",")
    options: dict[str, Any] = {}
    for name, _, value in (pair.strip().partition("=") for pair in pairs):
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value.split("+") if name == "of" else value
    return directory, options


def main() -> None:
    """Run the script, or the module, that the command line names."""
    del sys.argv[0]
    if is_module := sys.argv[:1] == ["-m"]:
        del sys.argv[0]
    if not sys.argv:
        sys.exit(
            f"usage: {RECORD_VARIABLE}=DIRECTORY[,ARGUMENT=VALUE...] python -m ingest.recording "
            "SCRIPT ... (or -m MODULE ...)"
        )
    with ExitStack() as recording:
        if text := os.environ.get(RECORD_VARIABLE, ""):
            directory, options = options_of(text)
            try:
                recording.enter_context(record_training(directory, **options))
            except UsageError as exc:
                sys.exit(f"{RECORD_VARIABLE}: {exc.message}")
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
            runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
