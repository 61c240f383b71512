"""Cases of programs that are cut over ranks, each against its reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from proving.case import Case, Dump, Run

Options = dict[str, Any]

#: How the same computation is cut. The options that do not cut are also those of the run on one rank.
CUTS: dict[str, Options] = {
    "tp=2": {"tp": 2},
    "tp=4": {"tp": 4},
    "tp=2, sgd": {"tp": 2, "optimizer": "sgd"},
    "tp=2, momentum": {"tp": 2, "optimizer": "momentum"},
    "tp=2, adam": {"tp": 2, "optimizer": "adam"},
    "tp=2, no bias": {"tp": 2, "bias": False},
    "tp=2, tied": {"tp": 2, "tied": True},
    "tp=2, norm of heads": {"tp": 2, "head_norm": True},
    "tp=2, recomputed": {"tp": 2, "recompute": True},
    "tp=2, clipped": {"tp": 2, "clip": 0.5, "optimizer": "sgd"},
    "tp=2, microbatches": {"tp": 2, "microbatches": 2},
    "tp=2, late": {"tp": 2, "bias": False, "late": True},
    "tp=4, late": {"tp": 4, "bias": False, "late": True, "optimizer": "sgd"},
    "sp=2": {"tp": 2, "sequence": True},
    "sp=4": {"tp": 4, "sequence": True},
    "sp=2, late": {"tp": 2, "sequence": True, "bias": False, "late": True},
    "sp=2, experts": {"tp": 2, "sequence": True, "moe": 1},
    "cp=2": {"cp": 2},
    "cp=4": {"cp": 4},
    "cp=2, padded": {"cp": 2, "padded": True},
    "cp=2, further": {"cp": 2, "further": True},
    "dp=2": {"dp": 2},
    "dp=4": {"dp": 4},
    "dp=2, padded": {"dp": 2, "padded": True},
    "dp=2, microbatches": {"dp": 2, "microbatches": 2},
    "dp=2, experts": {"dp": 2, "moe": 1},
    "ep=2": {"dp": 2, "experts": True, "moe": 1},
    "ep=4": {"dp": 4, "experts": True, "moe": 1},
    "dp=2 tp=2": {"dp": 2, "tp": 2},
    "dp=2 tp=2, further": {"dp": 2, "tp": 2, "further": True, "padded": True},
    "dp=2 tp=2, late": {"dp": 2, "tp": 2, "bias": False, "late": True},
    "dp=2 sp=2": {"dp": 2, "tp": 2, "sequence": True},
    "dp=2 sp=2, masked": {
        "dp": 2,
        "tp": 2,
        "sequence": True,
        "moe": 1,
        "padded": True,
        "masked": True,
    },
    "cp=2 tp=2": {"cp": 2, "tp": 2},
    "cp=2 sp=2": {"cp": 2, "tp": 2, "sequence": True},
    "dp=2 cp=2": {"dp": 2, "cp": 2},
    "ep=2 tp=2": {"dp": 2, "tp": 2, "experts": True, "moe": 1},
    "ep=2 sp=2": {"dp": 2, "tp": 2, "sequence": True, "experts": True, "moe": 1},
}
_AXES = ("dp", "cp", "tp")
_CUTTING = (*_AXES, "sequence", "experts", "late")

_TP, _SP, _DP, _CP = {"tp": 2}, {"tp": 2, "sequence": True}, {"dp": 2}, {"cp": 2}
_EP = {"dp": 2, "experts": True, "moe": 1}
_DP_TP, _DP_SP = {"dp": 2, "tp": 2}, {"dp": 2, "tp": 2, "sequence": True}
_SGD = {"optimizer": "sgd"}

#: The mistakes: what, where, the variant, in which step and on which ranks, and the list that it is from.
MISTAKES: tuple[tuple[str, str, Options, int, tuple[int, ...], str], ...] = (
    # tensor parallelism
    ("no reduction forward", "blocks.1.mlp.down", _TP, 0, (), "answers A5"),
    ("no reduction forward", "blocks.2.attention.out", {"tp": 4} | _SGD, 1, (), ""),
    ("no reduction forward", "blocks.1.mlp.down", _SP, 0, (), ""),
    ("bias on each rank", "blocks.1.attention.out", _TP, 0, (), "answers A6"),
    ("bias on each rank", "blocks.0.mlp.down", {"tp": 4} | _SGD, 1, (), ""),
    ("bias lost", "blocks.2.attention.out", _TP | _SGD, 1, (), ""),
    ("reduced twice forward", "blocks.1.attention.out", _TP, 0, (), ""),
    ("average instead of sum", "blocks.0.mlp.down", _TP | _SGD, 0, (), ""),
    ("no reduction backward", "", _TP, 0, (), "answers A7"),
    ("no reduction backward", "blocks.1.mlp.up", _TP | _SGD, 1, (), ""),
    ("no reduction backward", "blocks.1.attention.k", _TP, 0, (), ""),
    ("reduced twice backward", "blocks.2.mlp.up", _TP, 0, (), ""),
    ("wrong group forward", "blocks.1.attention.out", _DP_TP, 0, (), "Megatron 6"),
    ("wrong group backward", "blocks.0.mlp.up", _DP_TP | _SGD, 0, (), ""),
    ("gradients of equal losses added up", "", _TP | _SGD, 0, (), "Megatron B"),
    ("words of others not masked", "embed", _TP, 0, (), "TTrace 1"),
    (
        "gradient of the norm of heads not added up",
        "blocks.1.attention.norm",
        _TP | {"head_norm": True},
        0,
        (),
        "Megatron 11",
    ),
    # sequence parallelism
    ("gradient of a norm not added up", "blocks.1.ln1.weight", _SP, 0, (), "TTrace 12"),
    ("gradient of a norm not added up", "norm.weight", _SP | _SGD, 1, (), ""),
    ("norm added up over a wrong group", "blocks.1.ln2.weight", _DP_SP, 0, (), "TTrace 14"),
    ("gradient of the router not added up", "blocks.1.mlp", _SP | {"moe": 1}, 0, (), "TTrace 6"),
    ("tokens out of order", "blocks.1.mlp.up", _SP, 0, (), ""),
    ("wrong group gather", "blocks.0.mlp.up", _DP_SP, 0, (), "Megatron 7"),
    # recomputation
    ("recomputed from a wrong input", "blocks.1", _TP | {"recompute": True}, 0, (), "TTrace 2"),
    ("kept parts gathered from a wrong group", "blocks.1", _DP_TP | {"recompute": True}, 0, (), "Megatron 4"),
    # context parallelism
    ("gradients of keys not added up", "blocks.1.attention", _CP, 0, (), "TTrace 13"),
    ("wrong group of keys", "blocks.1.attention", {"cp": 2, "tp": 2, "group": "tp"}, 1, (), "Megatron 13"),
    ("mask begins anew on each rank", "blocks.0.attention", _CP | _SGD, 0, (), ""),
    ("positions begin anew on each rank", "", _CP, 0, (), ""),
    ("context parallel ranks not added up", "blocks.1.mlp.up.weight", _CP, 0, (), ""),
    ("divided by the own number of targets", "", _CP | _SGD | {"padded": True}, 0, (), "Megatron 9"),
    ("targets of another part of the sequence", "", _CP | _SGD, 1, (), ""),
    # multi-token prediction
    (
        "further loss divided by the own number of targets",
        "",
        {"dp": 4, "further": True, "padded": True} | _SGD,
        0,
        (),
        "Megatron 3",
    ),
    (
        "further loss divided by the size of context parallelism",
        "",
        _CP | _SGD | {"further": True},
        0,
        (),
        "NVIDIA/Megatron-LM#3959",
    ),
    ("further targets end on each rank", "", _CP | {"further": True}, 0, (), ""),
    (
        "further loss not divided by the number of microbatches",
        "",
        _TP | _SGD | {"further": True, "microbatches": 2},
        0,
        (),
        "NVIDIA/Megatron-LM#1532",
    ),
    # experts
    ("experts exchanged", "blocks.1.mlp", _EP, 0, (1,), ""),
    ("gates add up to one", "blocks.1.mlp", _EP, 0, (), ""),
    ("tokens come back in another order", "blocks.1.mlp", _EP, 1, (), ""),
    (
        "padding mask cut over a wrong group",
        "blocks.1.mlp",
        _DP_SP | {"moe": 1, "padded": True, "masked": True},
        0,
        (1, 2),
        "Megatron 5",
    ),
    ("experts not divided", "", _EP | _SGD, 0, (), "Megatron C"),
    # loading
    ("same shard", "blocks.1.attention.q", _TP, 0, (1,), ""),
    ("same shard", "blocks.2.mlp.down", {"tp": 4} | _SGD, 0, (2,), ""),
    ("shards exchanged", "blocks.1.mlp.up", _TP, 0, (), ""),
    ("interleaved shards", "blocks.0.mlp.up", _TP | _SGD, 0, (), ""),
    ("transposed weight", "blocks.1.attention.v", _TP, 0, (), ""),
    ("rows in another order", "blocks.1.attention.q", _TP | _SGD, 0, (1,), ""),
    # operators
    ("eps of one norm", "blocks.1.ln1", _DP, 0, (), "answers A8"),
    ("other gelu", "blocks.0.mlp", _DP, 0, (), "answers A9"),
    ("scores not scaled", "blocks.2.attention", _TP | _SGD, 0, (), ""),
    # data parallelism
    ("gradient not averaged", "blocks.1.mlp.up.weight", _DP, 0, (), ""),
    ("gradient not averaged", "head.weight", {"dp": 4} | _SGD, 1, (), ""),
    ("averaged over a wrong group", "blocks.0.attention.q.weight", _DP_TP | {"group": "tp"}, 0, (), ""),
    ("averaged before the last microbatch", "", _DP | {"microbatches": 2}, 0, (), "TTrace 11"),
    ("summed instead of averaged", "", _DP | _SGD, 0, (), ""),
    ("divided twice", "", {"dp": 4} | _SGD, 1, (), ""),
    ("divided by the own number of targets", "", _DP | _SGD | {"padded": True}, 0, (), "TTrace 3"),
    ("not divided by the number of microbatches", "", _DP | _SGD | {"microbatches": 2}, 0, (), "TTrace 4"),
    ("same batch on all ranks", "", _DP, 1, (1,), ""),
    ("same batch on all ranks", "", {"dp": 4} | _SGD, 0, (2,), ""),
    ("batch of one token", "", _DP, 1, (), "answers B6"),
    ("targets not shifted", "", _DP | _SGD, 0, (), ""),
    ("lost in transit", "blocks.1.mlp.down.weight", _DP, 1, (1,), "TrainCheck pytorch-84803"),
    ("lost in transit", "blocks.1.mlp.down", _TP, 1, (1,), "TrainCheck pytorch-96600"),
    ("lost in transit", "head.weight", {"dp": 4} | _SGD, 0, (3,), "TrainCheck baichuan2-86"),
    # optimizer
    ("clipped on one rank only", "", _TP | _SGD | {"clip": 0.2}, 0, (), "TrainCheck deepspeed-1801"),
    (
        "a shard left out of the norm",
        "blocks.1.attention.q.weight",
        _TP | _SGD | {"clip": 0.2},
        0,
        (),
        "Megatron 8",
    ),
    ("update not gathered", "blocks.1.mlp.up.weight", _DP, 1, (1,), "TTrace 9"),
    ("update not gathered", "embed.weight", {"dp": 4} | _SGD, 0, (2,), ""),
    # memory
    ("parameter changes", "blocks.1.mlp.up.weight", _DP, 1, (1,), "answers B1"),
    ("parameter changes", "blocks.2.attention.v.weight", _DP | {"change": "12"}, 1, (1,), "answers B2"),
    ("parameter changes", "blocks.0.mlp.down.weight", {"dp": 4, "change": "row"}, 0, (2,), ""),
    ("parameter changes", "norm.weight", {"tp": 2, "change": "20"}, 1, (1,), ""),
    ("gradient changes", "blocks.1.mlp.up.weight", _DP | _SGD | {"change": "24"}, 1, (0,), ""),
    ("activation changes", "blocks.1", _TP | {"change": "element"}, 1, (1,), ""),
    ("activation changes", "blocks.1", _TP | {"change": "18"}, 0, (0,), ""),
    ("activation changes", "blocks.0", {"tp": 4, "change": "row"} | _SGD, 1, (2,), ""),
    ("activation changes", "blocks.1", _TP | {"change": "nan"}, 1, (1,), "answers B5"),
)

#: Programs of what PyTorch brings: how many ranks, and the options.
TOOLS: dict[str, tuple[str, int, Options]] = {
    "ddp": ("sharded", 2, {}),
    "ddp, microbatches": ("sharded", 2, {"microbatches": 2}),
    "ddp, cnn": ("sharded", 2, {"net": "cnn"}),
    "ddp on 4": ("sharded", 4, {"optimizer": "sgd"}),
    "fsdp1": ("sharded", 2, {"kind": "fsdp1"}),
    "fsdp1 on 4, clipped": ("sharded", 4, {"kind": "fsdp1", "clip": 0.3, "optimizer": "sgd"}),
    "fsdp2": ("sharded", 2, {"kind": "fsdp2"}),
    "fsdp2 on 4": ("sharded", 4, {"kind": "fsdp2", "optimizer": "sgd"}),
    "fsdp2, clipped": ("sharded", 2, {"kind": "fsdp2", "clip": 0.3}),
    "dtensor tp": ("sharded", 2, {"kind": "tp"}),
    "dtensor tp on 4": ("sharded", 4, {"kind": "tp", "optimizer": "sgd"}),
    "dtensor sp": ("sharded", 2, {"kind": "sp"}),
    "dtensor sp on 4": ("sharded", 4, {"kind": "sp"}),
    "fsdp2 x dtensor tp": ("sharded", 4, {"kind": "fsdp2 tp"}),
    "pipeline": ("pipeline", 2, {"stages": 2}),
    "pipeline, sgd": ("pipeline", 2, {"stages": 2, "optimizer": "sgd"}),
    "pipeline, tied": ("pipeline", 2, {"stages": 2, "tied": True}),
    "pipeline x replicas": ("pipeline", 4, {"stages": 2, "samples": 8}),
}

#: Mistakes in them: the fault, the variant above, in which step, on which ranks, and its list.
TOOL_MISTAKES: tuple[tuple[str, str, int, tuple[int, ...], str], ...] = (
    ("parameters replaced after DDP took them", "ddp", 0, (), "TrainCheck pytorch-104336"),
    ("every other step without DDP", "ddp on 4", 1, (), "TrainCheck x-jxmnop"),
    ("no_sync is never left", "ddp, microbatches", 1, (), ""),
    ("no_sync is never left", "ddp", 0, (), ""),
    ("statistics of BatchNorm not shared", "ddp, cnn", 0, (), ""),
    ("same batch on all ranks", "ddp, cnn", 1, (1,), "TrainCheck stackoverflow-67180955"),
    ("other eps of one norm", "ddp", 0, (), "answers A8"),
    ("optimizer made before FSDP", "fsdp1", 0, (), "TrainCheck accelerate-2665"),
    ("gradients of FSDP never reduced", "fsdp2", 1, (), ""),
    ("gradients clipped by local norms", "fsdp2, clipped", 0, (), ""),
    ("same batch on all ranks", "fsdp2 on 4", 1, (2,), ""),
    ("a weight of one shard is stale", "fsdp2", 1, (1,), ""),
    ("other eps of one norm", "fsdp1", 0, (), ""),
    ("output left as partial sum", "dtensor tp", 0, (), ""),
    ("norms left out of the plan", "dtensor sp", 0, (), ""),
    ("gradients of tied weights not added up", "pipeline, tied", 0, (), "TTrace 5"),
    ("a layer left out", "pipeline", 0, (), "TTrace 10"),
    ("layers loaded by their numbers in the stage", "pipeline", 0, (1,), "Megatron 12"),
    ("loss not divided by the number of microbatches", "pipeline, sgd", 0, (), ""),
    ("replicas not averaged", "pipeline x replicas", 1, (), ""),
)


def cases(seed: int) -> Iterator[Case]:
    """Yield every case."""
    yield from _by_hand(seed)
    yield from _by_tools(seed)


def _by_hand(seed: int) -> Iterator[Case]:
    for name, options in CUTS.items():
        yield Case(f"megatron, {name}", _megatron(seed, options), _uncut(seed, options))
    for fault, where, options, at, on, source in MISTAKES:
        healthy = _megatron(seed, options)
        run = replace(healthy.having(**options, where=where), fault=fault, at=at, on=on)
        # Where the cut itself changes nothing that is compared, one rank is the reference.
        reference = healthy if options.get("dp", 1) > 1 or "change" in options else _uncut(seed, options)
        name = f"megatron, {_named(options)}: {fault} {where}".rstrip()
        yield Case(name, run, reference, source=source or "own")


def _by_tools(seed: int) -> Iterator[Case]:
    runs = {
        name: Run(program, ranks=ranks, steps=3, seed=seed).having(**options)
        for name, (program, ranks, options) in TOOLS.items()
    }
    for name, run in runs.items():
        # One process has no parallelism, and statistics of BatchNorm are those of the own part of a batch.
        alone = replace(
            run.having(stages=1) if run.program == "pipeline" else run.having(kind="ddp"), ranks=1
        )
        yield Case(name, run, None if "cnn" in name else alone)
    yield Case("fsdp2, against ddp", runs["fsdp2"], runs["ddp"], alone=False)
    yield Case("ddp, other shares of samples", runs["ddp"].having(shifted=True), runs["ddp"], alone=False)
    for name in ("ddp", "fsdp2", "dtensor tp"):
        yield Case(f"{name}, functions", replace(runs[name], dump=Dump.FUNCTIONS), runs[name])
    for name in ("dtensor tp", "dtensor tp on 4", "dtensor sp", "dtensor sp on 4", "fsdp2 x dtensor tp"):
        run = replace(runs[name], dump=Dump.SGLANG)
        alone = replace(run.having(kind="ddp"), ranks=1)
        yield Case(f"{name}, SGLang's dumper", run, alone)
    for name in ("tp=2", "sp=2", "dp=2 tp=2", "tp=2, late", "cp=2"):
        run = replace(_megatron(seed, CUTS[name]), dump=Dump.SGLANG)
        alone = replace(_uncut(seed, CUTS[name]), dump=Dump.SGLANG)
        yield Case(f"megatron, {name}, SGLang's dumper", run, alone)
    for fault, name, at, on, source in TOOL_MISTAKES:
        run = replace(runs[name], fault=fault, at=at, on=on)
        yield Case(f"{name}: {fault}", run, runs[name], source=source or "own")


def _megatron(seed: int, options: Options) -> Run:
    ranks = prod(options.get(axis, 1) for axis in _AXES)
    known = {name: value for name, value in options.items() if name not in ("change", "group")}
    return Run("megatron", ranks=ranks, steps=3, seed=seed).having(**known)


def _uncut(seed: int, options: Options) -> Run:
    return _megatron(seed, {name: value for name, value in options.items() if name not in _CUTTING})


def _named(options: Options) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items() if name not in ("where", "group"))
