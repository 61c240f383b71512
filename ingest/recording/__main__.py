"""Run a training script with a recorder, without changing it.

    DUMP_INGEST_RECORD=run-dump,black_box=8 python -m ingest.recording train.py --epochs 3
    DUMP_INGEST_RECORD=run-dump,of=outputs+gradients torchrun --nproc-per-node 2 -m ingest.recording train.py

The variable names the directory, and arguments of `ingest.record`. Without it, the script runs as ever. What
is recorded is the module that was called and has the parameters which an optimizer updates first: from that
update on, as step 1, or as the step that the optimizer has counted to in a job that goes on at a checkpoint.
"""

from __future__ import annotations

import ast
import os
import runpy
import sys
import warnings
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from ingest.environment import RECORD_VARIABLE
from ingest.recording.record import record
from ingest.recording.snapshots import TorchModule, import_torch
from workers.errors import DumpIngestError, UsageError

#: How often `torchrun` has started the processes again.
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def options_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return the directory and the arguments of `ingest.record` that the variable names.

    >>> options_of("run-dump,black_box=8,keep=4GiB,of=outputs+gradients,overhead=0.03")
    ('run-dump', {'black_box': 8, 'keep': '4GiB', 'of': ['outputs', 'gradients'], 'overhead': 0.03})
    """
    directory, *pairs = text.split(",")
    options: dict[str, Any] = {}
    for name, _, value in (pair.strip().partition("=") for pair in pairs):
        if name not in (record.__kwdefaults__ or {}):
            raise UsageError(f"{RECORD_VARIABLE}: `ingest.record` has not got an argument {name!r}")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value.split("+") if name == "of" else value
    return directory, options


class FirstUpdate:
    """Waits for the first step of an optimizer, and records the model of its parameters from then on.

    Args:
        recording: where the recorder ends.
        directory, options: for `ingest.record`.
    """

    def __init__(self, recording: ExitStack, directory: str, options: dict[str, Any]) -> None:
        import_torch()
        modules = import_module("torch.nn.modules.module")
        optimizers = import_module("torch.optim.optimizer")
        self._recording, self._directory, self._options = recording, directory, options
        self._called: dict[TorchModule, None] = {}
        self._model: TorchModule | None = None
        self._updates: int | None = None
        """How many updates the optimizer counts, those before a checkpoint included; None if it does not."""
        self._hooks = [
            modules.register_module_forward_pre_hook(self._before),
            optimizers.register_optimizer_step_post_hook(self._choose),
        ]

    def _choose(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Choose of the modules that were called the outermost one that has the most of these parameters."""
        updated = {id(one) for group in optimizer.param_groups for one in group["params"]}
        owned = {
            module: (len(updated.intersection(map(id, module.parameters()))), len(list(module.modules())))
            for module in self._called
        }
        model = max(owned, key=lambda module: owned[module], default=None)
        if self._model is None and model is not None and owned[model][0]:
            self._model = model
            counts = (int(state["step"]) for state in optimizer.state.values() if "step" in state)
            self._updates = max(counts, default=None)

    def _before(self, module: TorchModule, _inputs: Any) -> None:
        if self._model is None:
            self._called[module] = None
            return
        # Now, and not after the update: hooks of optimizers cannot be added while they are called.
        for hook in self._hooks:
            hook.remove()
        options = {"advance": "optimizer", "first_step": self._updates or 1, **self._options}
        try:
            if (
                self._updates is None
                and int(os.environ.get(_RESTARTS, "0"))
                and "first_step" not in self._options
            ):
                raise UsageError(
                    "the optimizer does not count its steps, so it is not known where this restart goes on",
                    hint="Call `ingest.record` in the script, with `first_step`.",
                )
            self._recording.enter_context(record(self._model, self._directory, **options))
        except DumpIngestError as exc:  # the training goes on
            warnings.warn(f"nothing is recorded: {exc.message}. {exc.hint}", RuntimeWarning, stacklevel=2)
        self._called.clear()


def main() -> None:
    """Run the script that the command line names."""
    if len(sys.argv) < 2:
        sys.exit(
            f"usage: {RECORD_VARIABLE}=DIRECTORY[,ARGUMENT=VALUE...] python -m ingest.recording SCRIPT ..."
        )
    del sys.argv[0]
    text = os.environ.get(RECORD_VARIABLE, "")
    try:
        directory, options = options_of(text)
    except UsageError as exc:
        sys.exit(exc.message)
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    with ExitStack() as recording:
        if text:
            FirstUpdate(recording, directory, options)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
