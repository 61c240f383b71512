"""The training loop that most programs share, and the faults of training loops."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from proving.case import Cause, Fault
from proving.job import Job

_PARAMETERS = ("Parameter.*",)
_GRADIENTS = ("Gradient.*.weight", "Gradient.*.bias")
_INPUT = ("model",)
#: The layer that the loss reads, in all programs.
_LOSS = tuple(
    f"{kind}{name}*"
    for name in ("model", "head", "fc", "last", "net.4", "decoder", "encoder.2", "policy")
    for kind in ("", "Gradient.")
)

FAULTS = {
    "no zero_grad": Fault((*_GRADIENTS, "optimizer"), (Cause.ACCUMULATED,)),
    "gradients clipped to nothing": Fault(
        (*_PARAMETERS, *_GRADIENTS),
        (Cause.CLIPPED, Cause.NOT_UPDATED, Cause.WRONG_UPDATE, Cause.FACTOR),
        lag=1,
    ),
    "loss not divided by accumulation": Fault(
        _LOSS, (Cause.FACTOR,), hidden="the number of passes that count as one batch is the user's choice"
    ),
    "gradients clipped before unscale": Fault(
        _PARAMETERS,
        (Cause.WRONG_UPDATE, Cause.CLIPPED, Cause.FACTOR, Cause.NOT_UPDATED),
        lag=1,
        hidden="neither the limit nor the rate is dumped: a smaller one of either gives the same values",
    ),
    "loss scaled twice": Fault(_LOSS, (Cause.FACTOR,)),
    "learning rate 0 on one group": Fault((), (Cause.NOT_UPDATED,), lag=1),
    "learning rate 100 times too high": Fault(_PARAMETERS, (Cause.WRONG_UPDATE, Cause.FACTOR), lag=1),
    "optimizer of a copy": Fault(_PARAMETERS, (Cause.NOT_UPDATED,), lag=1),
    "optimizer has only the last layer": Fault((), (Cause.NOT_UPDATED,), lag=1),
    "weight decay on norms": Fault(
        (), (Cause.WRONG_UPDATE, Cause.FACTOR), lag=1, hidden="what decays is the user's choice"
    ),
    "optimizer state lost": Fault(
        _PARAMETERS, (Cause.STATE_LOST, Cause.WRONG_UPDATE, Cause.STATE_OUT_OF_STEP), lag=1
    ),
    "eval mode not left": Fault(("*drop*", "*norm*", "*bn*"), (Cause.MODE,), lag=1),
    "parameters lose their gradient": Fault((), (Cause.NO_GRADIENT, Cause.NOT_UPDATED), lag=1),
    "one bit of a parameter": Fault((), (Cause.BIT, Cause.ELEMENT, Cause.WRONG_UPDATE), lag=1),
    "one element of a parameter": Fault((), (Cause.ELEMENT, Cause.OFFSET, Cause.WRONG_UPDATE), lag=1),
    "one row of a parameter": Fault((), (Cause.ROW, Cause.WRONG_UPDATE), lag=1),
    "stale parameter": Fault((), (Cause.STALE, Cause.NOT_UPDATED, Cause.WRONG_UPDATE), lag=1),
    "batch of one value": Fault(_INPUT, (Cause.CONSTANT_BATCH, Cause.BAD_BATCH)),
    "batch repeated": Fault(_INPUT, (Cause.REPEATED_BATCH, Cause.STALE)),
    "batch in other units": Fault(_INPUT, (Cause.BAD_BATCH, Cause.FACTOR)),
    "batch merged into one record": Fault(
        _INPUT, (Cause.BAD_BATCH, Cause.OPERATOR), hidden="one record is a legal batch"
    ),
    "targets off by one": Fault(
        ("model", "Gradient.*"),
        (Cause.SHIFT, Cause.OPERATOR, Cause.PERMUTED),
        hidden="targets are not dumped",
    ),
    "NaN in a batch": Fault(_INPUT, (Cause.NOT_FINITE, Cause.BAD_BATCH)),
}


@dataclass(frozen=True, slots=True)
class Training:
    """How to train."""

    optimizer: str = "adamw"
    rate: float = 1e-3
    accumulate: int = 1
    clip: float = 0.0
    warm_up: int = 0
    scaler: bool = False
    bfloat16: bool = False
    evaluate_every: int = 0
    restart: int = 0
    """The step before which the job ends, and another goes on at its checkpoint; 0 for none."""
    reverse: bool = False
    """Whether the records of each batch come in the other order."""
    every: int = 1
    """Record only such steps."""
    threads: int = 1
    advance: str = "forward"
    """What begins a step; `optimizer` for a model that is called several times in one."""
    frozen: str = ""
    """Parameters whose names contain this are not trained."""


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal by five steps of Newton and Schulz; SGD for vectors."""

    def __init__(self, parameters: Any, lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002  (the interface of optimizers)
        """Update all parameters."""
        for group in self.param_groups:
            for parameter in (one for one in group["params"] if one.grad is not None):
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(group["momentum"]).add_(parameter.grad)
                update = parameter.grad.add(momentum, alpha=group["momentum"])
                parameter.add_(_orthogonal(update) if update.ndim == 2 else update, alpha=-group["lr"])


def _orthogonal(matrix: Any) -> Any:
    x = matrix / (matrix.norm() + 1e-7)
    x = x.T if matrix.size(0) > matrix.size(1) else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


def fit(
    job: Job,
    model: Any,
    batches: Callable[[int], Any],
    loss_of: Callable[[Any, Any], Any],
) -> None:
    """Train a model, and dump it.

    Args:
        job: what to do wrong, and where to dump.
        model: takes the first of a batch.
        batches: returns the batch of a step: what the model takes, and what the loss takes beside its output.
        loss_of: the loss of the output and the second of a batch.
    """
    training = job.options(Training)
    torch.set_num_threads(training.threads)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(
            parameter.requires_grad and not (training.frozen and training.frozen in name)
        )
    job.edit(model)
    loop = _Loop(job, training, model, batches, loss_of)
    middle = training.restart or job.steps
    loop.run(range(middle))
    if training.restart:
        checkpoint = copy.deepcopy(loop.state())
        fresh = _Loop(job, training, copy.deepcopy(model), batches, loss_of)
        fresh.load(checkpoint, middle)
        fresh.run(range(middle, job.steps))


class _Loop:
    def __init__(
        self,
        job: Job,
        training: Training,
        model: Any,
        batches: Callable[[int], Any],
        loss_of: Any,
    ) -> None:
        self.job, self.training, self.model = job, training, model
        self.batches, self.loss_of = batches, loss_of
        self.trained = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        self.net = DistributedDataParallel(model) if distributed.is_initialized() else model
        self.optimizer = self.make_optimizer()
        self.warm_up = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / training.warm_up) if training.warm_up else 1.0
        )
        self.scaler = torch.amp.GradScaler("cpu", enabled=training.scaler, init_scale=2.0**10)
        self.before: dict[str, Any] = {}

    def make_optimizer(self) -> Any:
        """Return the optimizer; norms and biases are a group without decay."""
        vectors = [(name, one) for name, one in self.trained if one.ndim < 2]
        matrices = [(name, one) for name, one in self.trained if one.ndim >= 2]
        decay, rate = 0.1, self.training.rate
        groups = [
            {"params": [one for _, one in matrices], "weight_decay": decay},
            {"params": [one for _, one in vectors], "weight_decay": 0.0},
        ]
        names = [f"Parameter.{name}" for name, _ in vectors]
        if vectors and self.job.wrong("weight decay on norms", places=names):
            groups[1]["weight_decay"] = decay
        if vectors and self.job.wrong("learning rate 0 on one group", places=names):
            groups[1]["lr"] = 0.0
        if self.job.wrong("optimizer of a copy"):
            groups = [{**group, "params": copy.deepcopy(group["params"])} for group in groups]
        names = [f"Parameter.{name}" for name, _ in self.trained[:-2]]
        if self.job.wrong("optimizer has only the last layer", places=names):
            groups = [{"params": [one for _, one in self.trained[-2:]]}]
        groups = [group for group in groups if group["params"]]
        match self.training.optimizer:
            case "sgd":
                return torch.optim.SGD(groups, lr=rate * 10, momentum=0.9)
            case "adam":
                return torch.optim.Adam([one for _, one in self.trained], lr=rate)
            case "sparse":
                return torch.optim.SGD([one for _, one in self.trained], lr=rate * 10)
            case "muon":
                return Muon(groups, lr=rate * 10)
            case _:
                return torch.optim.AdamW(groups, lr=rate)

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, checkpoint: dict[str, Any], step: int) -> None:
        """Go on at a checkpoint."""
        self.model.load_state_dict(checkpoint["model"])
        if not self.job.wrong("optimizer state lost", step):
            self.optimizer.load_state_dict(checkpoint["optimizer"])

    def run(self, steps: range) -> None:
        """Train, and dump."""
        is_repeated = self.training.accumulate > 1 or self.training.evaluate_every
        how: dict[str, Any] = {"first_step": steps.start, "every": self.training.every}
        how["advance"] = "optimizer" if is_repeated else self.training.advance
        with self.job.recorded(self.net, **how):
            for step in steps:
                self.step(step)

    def step(self, step: int) -> None:
        """Run one step: the passes over its batch, and the optimizer."""
        job, training = self.job, self.training
        job.edit(self.model, step)
        name, parameter = self.victim()
        cut = [f"{kind}.{name}" for kind in ("Parameter", "Gradient")]
        if job.wrong("parameters lose their gradient", step, cut):
            parameter.requires_grad_(requires_grad=False)
            parameter.grad = None
        if step == 0 or not job.wrong("no zero_grad", step):  # before the first there is nothing
            self.optimizer.zero_grad()
        for x, target in self.pieces(step):
            with torch.autocast("cpu", torch.bfloat16) if training.bfloat16 else nullcontext():
                loss = self.loss_of(self.net(x), target)
            if not job.wrong("loss not divided by accumulation", step):
                loss = loss / training.accumulate
            if job.wrong("loss scaled twice", step):
                loss = loss * 1024
            self.scaler.scale(loss).backward()
        self.update(step)
        self.damage(step)
        self.warm_up.step()
        if training.evaluate_every and step % training.evaluate_every == training.evaluate_every - 1:
            self.validate(step)

    @torch.no_grad()
    def validate(self, step: int) -> None:
        """Measure the loss in eval mode."""
        self.model.eval()
        x, target = next(self.pieces(step))
        self.loss_of(self.net(x), target)
        if not self.job.wrong("eval mode not left", step):
            self.model.train()

    def update(self, step: int) -> None:
        """Clip the gradients and take the step of the optimizer."""
        job, parameters = self.job, [one for _, one in self.trained]
        if not job.wrong("gradients clipped before unscale", step):
            self.scaler.unscale_(self.optimizer)
        if job.wrong("gradients clipped to nothing", step):
            nn.utils.clip_grad_norm_(parameters, 1e-8)
        elif self.training.clip:
            nn.utils.clip_grad_norm_(parameters, self.training.clip)
        if job.wrong_once("learning rate 100 times too high", step):
            for group in self.optimizer.param_groups:
                group["lr"] *= 100
        self.before = {name: one.detach().clone() for name, one in self.trained}
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @torch.no_grad()
    def damage(self, step: int) -> None:
        """Do to a parameter what a defect of memory or of software does."""
        name, parameter = self.victim()
        place, flat = [f"Parameter.{name}"], parameter.reshape(-1)
        if self.job.wrong_once("one bit of a parameter", step, place):
            flat.view(torch.int32)[flat.numel() // 2] ^= 1 << 12
        if self.job.wrong_once("one element of a parameter", step, place):
            flat[flat.numel() // 2] += 1e-3
        if self.job.wrong_once("one row of a parameter", step, place):
            parameter[1] = self.before[name][0]
        if self.job.wrong_once("stale parameter", step, place):
            parameter.copy_(self.before[name])

    def victim(self) -> tuple[str, Any]:
        """Return the matrix in the middle of the model."""
        matrices = [(name, one) for name, one in self.trained if one.ndim >= 2]
        return matrices[len(matrices) // 2]

    def pieces(self, step: int) -> Iterator[tuple[Any, Any]]:
        """Yield the parts of a batch that are run one after another, each as input and target."""
        # Who reads the batch: the model, and in it the first module that computes.
        first = [next(name for name, module in self.model.named_modules() if not [*module.children()])]
        is_repeated = self.job.wrong_once("batch repeated", step, first)
        x, target = self.batches(step - 1 if is_repeated else step)
        if self.training.reverse:
            x, target = x.flip(0), target.flip(0)
        if self.job.wrong_once("batch of one value", step, first):
            x = x.flatten()[:1].expand(x.numel()).reshape(x.shape).clone()
        if self.job.wrong_once("batch in other units", step, first):
            x = x * 255
        if self.job.wrong_once("NaN in a batch", step, first):
            x = x.clone()
            x[0, 0] = float("nan")
        if self.job.wrong("targets off by one", step):
            target = target.roll(1, 0)
        if self.job.wrong("batch merged into one record", step, first):
            x, target = x.reshape(1, -1), target.reshape(1, -1)
        x, target = (part.chunk(self.job.ranks)[self.job.rank] for part in (x, target))
        parts = self.training.accumulate
        yield from zip(x.chunk(parts), target.chunk(parts), strict=True)
