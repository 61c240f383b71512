"""Cases of programs in one process, and of data parallelism over the same: products, not lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

from proving.case import Case, Dump, Fault, Run

Options = dict[str, Any]

#: How each family is trained unless a case says otherwise.
FAMILIES: dict[str, Options] = {
    "transformer": {},
    "cnn": {"optimizer": "sgd"},
    "lstm": {"optimizer": "adam", "clip": 1.0},
    "vae": {"optimizer": "adam"},
    "diffusion": {"clip": 1.0},
    "gan": {},
    "moe": {},
    "lora": {},
    "regression": {"optimizer": "sgd", "rate": 1e-4},
    "actor_critic": {"advance": "optimizer", "optimizer": "adam", "clip": 0.5},
    "graph": {"optimizer": "adam"},
    "recommender": {"optimizer": "sparse"},
    "vit": {"warm_up": 4},
    "contrastive": {"optimizer": "sgd", "rate": 1e-2},
}

#: Healthy runs of other kinds, asked alone: the family, how it differs, and the way to dump.
VARIANTS: tuple[tuple[str, Options, Dump], ...] = (
    ("transformer", {"positions": "rope", "norm": "rms", "bias": False}, Dump.TENSORS),
    ("transformer", {"post_norm": True, "optimizer": "adam"}, Dump.TENSORS),
    ("transformer", {"groups": 2, "fused": True}, Dump.FUNCTIONS),
    ("transformer", {"tied": True, "optimizer": "muon"}, Dump.TENSORS),
    ("transformer", {"bfloat16": True, "kernel": "sdpa"}, Dump.TENSORS),
    ("transformer", {"dropout": 0.1, "evaluate_every": 4}, Dump.TENSORS),
    ("transformer", {"accumulate": 2, "clip": 1.0}, Dump.TENSORS),
    ("transformer", {"scaler": True, "warm_up": 6}, Dump.STATS),
    ("transformer", {"checkpointing": True}, Dump.FUNCTIONS),
    ("transformer", {"frozen": "embed", "optimizer": "sgd"}, Dump.TENSORS),
    ("transformer", {"restart": 8}, Dump.TENSORS),
    ("transformer", {"clip": 0.01}, Dump.SAFETENSORS),
    ("cnn", {"bfloat16": True}, Dump.TENSORS),
    ("cnn", {"evaluate_every": 2, "optimizer": "adamw"}, Dump.TENSORS),
    ("cnn", {"frozen_stage": True}, Dump.TENSORS),
    ("cnn", {"rate": 1e-2}, Dump.HOOKS),
    ("cnn", {"optimizer": "muon"}, Dump.FUNCTIONS),
    ("lstm", {"kind": "GRU", "optimizer": "sgd"}, Dump.TENSORS),
    ("lstm", {"kind": "cells", "clip": 0.0}, Dump.FUNCTIONS),
    ("lstm", {"optimizer": "sgd", "rate": 3e-2, "clip": 0.0}, Dump.TENSORS),
    ("vae", {"scaler": True}, Dump.FUNCTIONS),
    ("diffusion", {"optimizer": "muon"}, Dump.SAFETENSORS),
    ("gan", {"optimizer": "sgd"}, Dump.FUNCTIONS),
    ("moe", {"experts": 8, "top": 1}, Dump.TENSORS),
    ("moe", {"bfloat16": True}, Dump.FUNCTIONS),
    ("lora", {"rank": 1, "optimizer": "sgd"}, Dump.HOOKS),
    ("regression", {"scale": 1e4, "optimizer": "adam", "rate": 1e-2}, Dump.TENSORS),
    ("regression", {"spectral": True}, Dump.TENSORS),
    ("regression", {"accumulate": 4}, Dump.STATS),
    ("actor_critic", {"optimizer": "adamw", "warm_up": 8}, Dump.TENSORS),
    ("graph", {"optimizer": "muon", "clip": 0.1}, Dump.FUNCTIONS),
    ("recommender", {"sparse": True}, Dump.TENSORS),
    ("vit", {"optimizer": "sgd", "bfloat16": True}, Dump.TENSORS),
    ("contrastive", {"warm_up": 8, "optimizer": "adamw"}, Dump.SAFETENSORS),
)

#: The same computation in another way, compared with the run without the second options.
OTHERWISE: tuple[tuple[str, Options, Options, Dump], ...] = (
    ("transformer", {}, {"kernel": "sdpa"}, Dump.TENSORS),
    ("transformer", {"optimizer": "sgd"}, {"kernel": "sdpa"}, Dump.TENSORS),
    ("transformer", {}, {"checkpointing": True}, Dump.TENSORS),
    ("transformer", {"optimizer": "sgd"}, {"reverse": True}, Dump.TENSORS),
    ("transformer", {"optimizer": "sgd", "advance": "optimizer"}, {"accumulate": 2}, Dump.TENSORS),
    ("transformer", {"optimizer": "sgd"}, {"scaler": True}, Dump.TENSORS),
    ("transformer", {}, {"restart": 3}, Dump.TENSORS),
    ("transformer", {}, {"every": 2}, Dump.TENSORS),
    ("transformer", {"kernel": "sdpa"}, {"threads": 2}, Dump.HOOKS),
    ("transformer", {"groups": 2}, {"kernel": "sdpa"}, Dump.FUNCTIONS),
    ("transformer", {"optimizer": "sparse"}, {"sparse": True}, Dump.TENSORS),
    ("transformer", {"tied": True}, {"restart": 2}, Dump.FUNCTIONS),
    ("cnn", {}, {"channels_last": True}, Dump.TENSORS),
    ("cnn", {}, {"restart": 3}, Dump.TENSORS),
    ("lstm", {}, {"restart": 2}, Dump.SAFETENSORS),
    ("moe", {}, {"every": 2}, Dump.TENSORS),
    ("graph", {"optimizer": "sgd"}, {"reverse": True}, Dump.TENSORS),
    ("recommender", {}, {"sparse": True}, Dump.TENSORS),
    ("regression", {}, {"restart": 4}, Dump.TENSORS),
    ("diffusion", {}, {"every": 3}, Dump.TENSORS),
)

#: Programs whose batch can be shared by two ranks without changing what is computed.
REPLICATED = ("transformer", "lstm", "regression", "graph", "diffusion")

_ADAM, _SGD = {"optimizer": "adam"}, {"optimizer": "sgd"}
_DDP, _LAST = {"ranks": 2}, {"ranks": 2, "on": (1,)}

#: Most begin in step 6: what is unusual is so against a few steps that are not.
#: Mistakes of training loops: what, in which family, how it is trained, in which step, and the list.
MISTAKES: tuple[tuple[str, str, Options, int, Options, str], ...] = (
    ("no zero_grad", "cnn", _ADAM, 0, {}, "TrainCheck stackoverflow-60335387"),
    ("no zero_grad", "lstm", {}, 6, {}, "answers B8"),
    ("no zero_grad", "transformer", _SGD, 6, {}, ""),
    ("no zero_grad", "transformer", {"clip": 0.5}, 6, {}, ""),
    ("gradients clipped to nothing", "lstm", {}, 0, {}, "answers B8"),
    ("gradients clipped to nothing", "vit", _SGD, 6, {}, ""),
    ("loss not divided by accumulation", "transformer", _SGD | {"accumulate": 2}, 0, {}, "TTrace 4"),
    ("gradients clipped before unscale", "transformer", _SGD | {"scaler": True, "clip": 1.0}, 0, {}, ""),
    ("loss scaled twice", "diffusion", {}, 6, {}, ""),
    ("learning rate 0 on one group", "transformer", {}, 0, {}, "answers B10"),
    ("learning rate 0 on one group", "cnn", {}, 0, {}, ""),
    ("learning rate 100 times too high", "vae", _SGD, 6, {}, ""),
    ("optimizer of a copy", "lora", {}, 0, {}, "TrainCheck deepspeed-6770"),
    ("optimizer of a copy", "graph", _SGD, 0, {}, "answers B10"),
    ("optimizer has only the last layer", "cnn", {}, 0, {}, "TrainCheck pytorch-forum-84911"),
    ("weight decay on norms", "transformer", {}, 0, {}, ""),
    ("optimizer state lost", "transformer", {"restart": 6}, 6, {}, ""),
    ("optimizer state lost", "cnn", {"restart": 6}, 6, {}, ""),
    ("eval mode not left", "cnn", {"evaluate_every": 2}, 6, {}, "answers B11"),
    ("eval mode not left", "transformer", {"dropout": 0.1, "evaluate_every": 2}, 6, {}, ""),
    ("parameters lose their gradient", "moe", {}, 6, {}, "answers B10"),
    ("parameters lose their gradient", "regression", {}, 6, {}, "TrainCheck pytorch-115607"),
    ("one bit of a parameter", "transformer", _SGD, 6, _LAST, "answers B2"),
    ("one bit of a parameter", "graph", _SGD, 6, {}, ""),
    ("one element of a parameter", "lstm", _SGD, 6, _LAST, "answers B1"),
    ("one element of a parameter", "diffusion", {}, 6, {}, ""),
    ("one row of a parameter", "transformer", {}, 6, {}, ""),
    ("one row of a parameter", "regression", {}, 6, _LAST, ""),
    ("stale parameter", "transformer", _SGD, 6, {}, ""),
    ("stale parameter", "graph", {}, 6, _LAST, ""),
    ("batch of one value", "transformer", {}, 6, {}, "answers B6"),
    ("batch of one value", "cnn", {}, 6, {}, ""),
    ("batch repeated", "lstm", {}, 6, {}, ""),
    ("batch repeated", "regression", {}, 6, {}, ""),
    ("batch in other units", "cnn", {}, 6, {}, ""),
    ("batch in other units", "diffusion", {}, 6, {}, ""),
    ("batch merged into one record", "lstm", {}, 6, {}, "TrainCheck transformers-34204"),
    ("targets off by one", "vae", _SGD, 6, {}, ""),
    ("targets off by one", "lstm", _SGD, 6, {}, ""),
    ("NaN in a batch", "cnn", {}, 6, {}, ""),
    ("NaN in a batch", "graph", {}, 6, _DDP, ""),
)

#: What a mistake of a program needs: options, and the step in which it begins if not the first.
NEEDED: dict[str, tuple[Options, int]] = {
    "BatchNorm in eval mode": ({}, 6),
    "dropout switched off": ({}, 6),
    "dropout left out": ({"dropout": 0.1}, 0),
    "dropout stays on in evaluation": ({"evaluate_every": 2}, 0),
    "frozen stage not in eval mode": ({"frozen_stage": True}, 0),
    "autocast left out of one layer": ({"bfloat16": True}, 0),
    "spectral norm in eval mode from the start": ({"spectral": True}, 0),
    "rope base": ({"positions": "rope"}, 0),
    "head not tied": ({"tied": True}, 0),
    "noise of one value": ({}, 6),
    "critic is not cleared": ({}, 6),
    "generator never gets a gradient": ({}, 6),
    "router in bfloat16": ({}, 6),
    "an expert returns nothing": ({}, 6),
    "time is not used": ({}, 6),
    "one channel is dead": ({}, 6),
    "one row is not a number": ({}, 6),
    "log of a negative number": ({}, 6),
    "overflow of the variance": ({}, 6),
    "division by a degree of zero": ({}, 6),
}
_LISTED = {
    "dropout stays on in evaluation": "TrainCheck transformers-33844",
    "frozen stage not in eval mode": "TrainCheck mmpretrain-702",
    "autocast left out of one layer": "TrainCheck lightning-thunder-725",
    "spectral norm in eval mode from the start": "TrainCheck pytorch-51800",
    "eps of one norm": "answers A8",
    "other gelu in one block": "answers A9",
    "log of a negative number": "answers B5",
    "dropout switched off": "answers B11",
}


def cases(seed: int) -> Iterator[Case]:
    """Yield every case."""
    yield from _healthy(seed)
    yield from _mistakes(seed)


def _run(seed: int, family: str, options: Options, steps: int, dump: Dump = Dump.TENSORS) -> Run:
    return Run(family, steps=steps, dump=dump, seed=seed).having(**{**FAMILIES[family], **options})


def _healthy(seed: int) -> Iterator[Case]:
    for family in FAMILIES:
        run = _run(seed, family, {}, 6)
        yield Case(family, _run(seed, family, {}, 20))
        yield Case(f"{family}, statistics", _run(seed, family, {}, 20, Dump.STATS))
        yield Case(f"{family}, two threads", run.having(threads=2), run, alone=False)
    for family, options, dump in VARIANTS:
        yield Case(f"{family}, {_named(options, dump)}", _run(seed, family, options, 16, dump))
    for family, options, otherwise, dump in OTHERWISE:
        run = _run(seed, family, options, 6, dump)
        yield Case(f"{family}, otherwise: {_named(options | otherwise, dump)}", run.having(**otherwise), run)
    for family in REPLICATED:
        run = _run(seed, family, _SGD, 5)
        yield Case(f"{family} on 2 ranks", replace(run, ranks=2), run)
    for family, dump in (("transformer", Dump.STATS), ("transformer", Dump.FUNCTIONS), ("cnn", Dump.STATS)):
        run = _run(seed, family, {}, 6)
        yield Case(f"{family}, {dump} and tensors", replace(run, dump=dump), run, alone=False)


def _mistakes(seed: int) -> Iterator[Case]:
    for fault, family, options, at, where, source in MISTAKES:
        healthy = replace(_run(seed, family, options, 10), ranks=where.get("ranks", 1))
        run = replace(healthy, fault=fault, at=at, on=where.get("on", ()))
        ranks = f" on {run.ranks} ranks" if run.ranks > 1 else ""
        name = f"{family}, {_named(options, Dump.TENSORS)}{ranks}: {fault}".replace(", :", ":")
        yield Case(name, run, healthy, source=source or "own")
    shared: dict[str, Fault] = import_module("proving.loop").FAULTS
    for family in FAMILIES:
        for fault in import_module(f"proving.programs.{family}").FAULTS:
            if fault not in shared:
                options, at = NEEDED.get(fault, ({}, 0))
                healthy = _run(seed, family, options, 10 if at else 5)
                run = replace(healthy, fault=fault, at=at)
                yield Case(f"{family}: {fault}", run, healthy, source=_LISTED.get(fault, "own"))


def _named(options: Options, dump: Dump) -> str:
    told = [f"{name}={value}" for name, value in options.items()]
    return ", ".join([*told, *([] if dump is Dump.TENSORS else [dump])])
