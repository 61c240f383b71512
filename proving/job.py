"""What a program is given: its options, whether to do the wrong thing now, and the line that dumps."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch

import ingest
from proving.case import Dump, Fault, Run, Truth

_ALL = ("inputs", "outputs", "gradients", "parameters")
_RECORDED: dict[Dump, dict[str, Any]] = {
    Dump.STATS: {"what": "stats", "of": _ALL},
    Dump.TENSORS: {"what": "tensors", "of": _ALL},
    Dump.FUNCTIONS: {"what": "tensors", "of": (*_ALL, "functions")},
}
_Options = TypeVar("_Options")


class Job:
    """One rank of a run."""

    def __init__(self, run: Run, rank: int, directory: Path, faults: dict[str, Fault]) -> None:
        self.run, self.rank, self.ranks, self.steps = run, rank, run.ranks, run.steps
        self.directory = directory
        self.fault = faults[run.fault] if run.fault else None
        self._done: tuple[int, tuple[str, ...]] | None = None

    def options(self, kind: type[_Options]) -> _Options:
        """Return the options of the run that are fields of `kind`, a dataclass."""
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        return kind(**{name: value for name, value in self.run.options if name in known})

    def wrong(self, fault: str, step: int = 0, places: Sequence[str] = ()) -> bool:
        """Return whether this rank does this wrong in this step, and note that it did.

        Args:
            fault: a key of the program's faults.
            step: the current step; 0 for what is wrong before the first.
            places: where, if only the program knows; more than the fault's own places.
        """
        is_meant = self.run.fault == fault and step >= self.run.at
        if not is_meant or (self.run.on and self.rank not in self.run.on):
            return False
        self._done = self._done or (step, tuple(places))
        return True

    def wrong_once(self, fault: str, step: int, places: Sequence[str] = ()) -> bool:
        """Return as `wrong`, but in one step alone."""
        return step == self.run.at and self.wrong(fault, step, places)

    def edit(self, model: Any, step: int = 0) -> None:
        """Change the model once, if the fault is an edit of it and begins now."""
        change = self.fault and self.fault.edit
        if change and self._done is None and self.wrong(self.run.fault, step):
            change(model)

    def truth(self) -> Truth | None:
        """Return what this rank did wrong; None if nothing."""
        if self._done is None or self.fault is None:
            return None
        step, places = self._done
        fault = self.fault
        ranks = self.run.on or tuple(range(self.ranks))
        ranks = tuple(sorted({*ranks, 0})) if fault.with_first else ranks
        accepted = (*fault.places, *places)
        return Truth(self.run.fault, accepted, fault.causes, (step, step + fault.lag), ranks, fault.hidden)

    def recorded(self, model: Any, **how: Any) -> AbstractContextManager[Any]:
        """Return what dumps a model while it is the context; `how` are arguments of `ingest.record`."""
        dump = self.run.dump
        if dump in _RECORDED:
            return ingest.record(model, self.directory, **{**_RECORDED[dump], **how})
        if dump is Dump.SGLANG:
            from proving.sglang import dumped  # deferred: it needs the package of SGLang

            return dumped(model, self.directory, how.get("mesh"))
        return _hooked(model, self.directory / f"rank{self.rank}", dump, how.get("first_step", 0))


@contextmanager
def _hooked(model: Any, directory: Path, dump: Dump, first_step: int) -> Iterator[None]:
    """Save the inputs and outputs of modules and the gradients of parameters, as many do by hand."""
    step, calls = first_step - 1, Counter[str]()

    def begin(*_: Any) -> None:
        nonlocal step
        step += 1
        calls.clear()

    def save(name: str, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            _save(directory / f"step{step}", name, tensor.detach().contiguous(), dump)

    def forward(name: str) -> Any:
        def hook(_: Any, inputs: Any, output: Any) -> None:
            if not calls[name]:  # of a module that is called again, the first call
                save(f"{name}.input.0", inputs[0] if inputs else None)
                save(f"{name}.output.0", output[0] if isinstance(output, tuple) else output)
            calls[name] += 1

        return hook

    def gradient(name: str) -> Any:
        return lambda parameter: save(f"grad.{name}.output.0", parameter.grad)

    handles = [model.register_forward_pre_hook(begin)]
    handles += [module.register_forward_hook(forward(name)) for name, module in model.named_modules() if name]
    handles += [
        parameter.register_post_accumulate_grad_hook(gradient(name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    yield
    for handle in handles:
        handle.remove()


def _save(directory: Path, name: str, tensor: Any, dump: Dump) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if dump is Dump.HOOKS:
        torch.save(tensor, directory / f"{name}.pt")
        return
    kinds = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16", torch.bool: "BOOL"}
    payload = tensor.view(torch.uint8).numpy().tobytes() if tensor.ndim else tensor.numpy().tobytes()
    entry = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [0, len(payload)]}
    header = json.dumps({name: entry}).encode()
    path = directory / f"{name}.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + payload)
