"""Records a training whose model is made, wrapped and called by somebody else: a trainer, or a script."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from ingest.recording.hooks import updated_of
from ingest.recording.record import record
from ingest.recording.recorder import Recorder
from ingest.recording.snapshots import TorchModule, import_torch
from workers.errors import DumpIngestError, UsageError

#: How often `torchrun` has started the processes again.
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


@contextmanager
def record_training(directory: str | os.PathLike[str], **options: Any) -> Iterator[RecordedTraining]:
    """Record what an optimizer of this process updates, whoever calls it, while the context is open.

        with ingest.record_training("run-dump", black_box=8):
            trainer.train()

    Recorded is the outermost module that was called and has the parameters that are updated first: from that
    update on, as step 1, or as the step that the optimizer has counted to in a job that goes on at a
    checkpoint. What cannot be recorded is a `RuntimeWarning`, and the training goes on.

    Args:
        directory: as for `record`.
        options: those of `record`, where `advance` is `optimizer` by default.

    Raises:
        UsageError: PyTorch is not installed, or `record` has not got such an argument.
    """
    if unknown := sorted(options.keys() - (record.__kwdefaults__ or {}).keys()):
        raise UsageError(f"`ingest.record` has not got an argument {unknown[0]!r}")
    with ExitStack() as recording:
        yield RecordedTraining(recording, directory, options)


class RecordedTraining:
    """Waits for the first step of an optimizer, and records the model of its parameters from then on.

    Args:
        recording: where the recorder ends.
        directory, options: for `ingest.record`.
    """

    def __init__(
        self, recording: ExitStack, directory: str | os.PathLike[str], options: dict[str, Any]
    ) -> None:
        import_torch()
        modules = import_module("torch.nn.modules.module")
        optimizers = import_module("torch.optim.optimizer")
        self.recorder: Recorder | None = None
        """None before the first call of the model after the first update."""
        self._recording, self._directory, self._options = recording, directory, options
        self._called: dict[TorchModule, None] = {}
        self._model: TorchModule | None = None
        self._updates: int | None = None
        """How many updates the optimizer counts, those before a checkpoint included; None if it does not."""
        self._hooks = recording.enter_context(ExitStack())
        for hook in (
            modules.register_module_forward_pre_hook(self._before),
            optimizers.register_optimizer_step_post_hook(self._choose),
        ):
            self._hooks.callback(hook.remove)

    def _choose(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Choose of the modules that were called the outermost one that has the most of these parameters."""
        updated = {id(one) for group in optimizer.param_groups for one in group["params"]}
        owned = {
            module: (len(updated & updated_of(module)), len(list(module.modules())))
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
        self._hooks.close()
        options = {"advance": "optimizer", "first_step": self._updates or 1, **self._options}
        try:
            if (
                self._updates is None
                and int(os.environ.get(_RESTARTS, "0"))
                and "first_step" not in self._options
            ):
                raise UsageError(
                    "the optimizer does not count its steps, so it is not known where this restart goes on",
                    hint="Pass `first_step`.",
                )
            self.recorder = self._recording.enter_context(record(self._model, self._directory, **options))
            if module is self._model:
                self.recorder.is_called = True
        except DumpIngestError as exc:  # the training goes on
            warnings.warn(f"nothing is recorded: {exc.message}. {exc.hint}", RuntimeWarning, stacklevel=2)
        self._called.clear()
