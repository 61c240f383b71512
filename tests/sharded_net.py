"""A small language model in numpy, run as one process or cut over ranks, with mistakes that can be planted.

Every rank dumps what it holds, as people do with hooks of their own: one `.npz` file for each rank and step.
The forward pass has an embedding, two layers of attention with a fused projection and of an MLP, and a head;
the backward pass goes through head and last MLP, and an optimizer updates what has gradients."""

import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import ingest
from ingest.questions.placement.layout_answer import RunLayout
from tests.stores import ingest_directly, npy_bytes

# The mistakes and harmless changes of `tests.sharded_net`, and where a comparison must find a mistake.


#: Mistake, tensor parallelism, data parallelism, and the first tensor that shows it.
BUGS = [
    ("BUG no mask in the embedding", 2, 1, 0, "embed"),
    ("BUG fused blocks are cut as one", 2, 1, 0, "layers.0.context"),
    ("BUG scale of the scores", 2, 1, 0, "layers.1.context"),
    ("BUG mask sees one token ahead", 2, 1, 0, "layers.1.context"),
    ("BUG epsilon of a norm", 2, 1, 0, "layers.1.norm1"),
    ("BUG residual on every rank", 2, 1, 0, "layers.1.proj.partial"),
    ("BUG activation before the reduction", 2, 1, 0, "layers.1.proj.partial"),
    ("BUG missing reduction", 2, 1, 0, "layers.1.proj"),
    ("BUG two ranks load one shard", 2, 1, 0, "layers.1.act"),
    ("BUG one dropout seed on all ranks", 2, 1, 0, "layers.1.act"),
    ("BUG shards are swapped", 2, 1, 0, "layers.1.fc2.partial"),
    ("BUG bias on every rank", 2, 1, 0, "layers.1.fc2.partial"),
    ("BUG reduces in 8 bits", 2, 1, 0, "embed"),
    ("BUG loss of one shard", 2, 1, 0, "loss"),
    ("BUG padding in the loss", 2, 1, 0, "loss"),
    ("BUG sign of a gradient", 2, 1, 0, "grad.norm"),
    ("BUG gradients are summed", 1, 2, 0, "grad.param.layers.2.fc1.weight"),
    ("BUG gradients are averaged twice", 1, 2, 0, "grad.param.layers.2.fc1.weight"),
    ("BUG replicas drift apart", 1, 2, 0, "param.layers.2.fc2.bias"),
    ("BUG a rank is not updated", 2, 1, 1, "param.layers.2.fc1.weight"),
    ("BUG weight decay", 2, 1, 1, "layers.2.act"),
    ("BUG a token on the border of shards is lost", 2, 1, 0, "embed"),
    ("BUG keys of another rank", 2, 1, 0, "layers.1.context"),
    ("BUG tokens attend to their own chunk", 2, 1, 0, "layers.1.context"),
    ("BUG read before the reduction is finished", 2, 1, 0, "layers.1.proj"),
    ("BUG sums in bfloat16", 2, 1, 0, "layers.1.fc2.partial"),
    ("BUG recomputation drops others", 2, 1, 0, "grad.layers.2.act"),
    ("BUG each rank clips by its own norm", 2, 1, 0, "grad.param.layers.2.fc1.weight"),
]
#: Tensor parallelism, data parallelism, and what else is different without being wrong.
HARMLESS = [
    (2, 1, ()),
    (4, 1, ()),
    (1, 2, ()),
    (1, 4, ()),
    (2, 2, ()),
    (2, 1, ("reversed sums",)),
    (2, 1, ("blocked sums",)),
    (2, 1, ("float64 sums",)),
    (2, 1, ("reversed ranks", "reversed sums")),
    (2, 1, ("other norm kernel",)),
    (2, 1, ("other softmax kernel",)),
    (2, 1, ("recomputation",)),
    (2, 1, ("sequence parallel",)),
    (2, 1, ("padded vocabulary",)),
    (1, 2, ("fully sharded",)),
    (1, 4, ("fully sharded", "blocked sums")),
    (2, 1, ("bfloat16", "reversed sums")),
    (2, 1, ("flash attention",)),
    (2, 1, ("powers of 2",)),
    (2, 1, ("micro-batches",)),
    (4, 1, ("ring reduction",)),
    (1, 4, ("micro-batches", "ring reduction")),
    (2, 1, ("bfloat16", "flash attention", "micro-batches")),
]


def short(name: str) -> str:
    """Return the name of a tensor of these runs without what its layout adds."""
    return name.removeprefix("Module..").removesuffix(".output.0")


Array = np.ndarray[Any, Any]
Dump = dict[str, Array]

BATCH, TOKENS, HIDDEN, HEADS, FFN, VOCAB, LAYERS = 4, 6, 16, 4, 24, 19, 3
#: How `compare` and `ingest` read these files.
LAYOUT = "rank{rank}/step{step}.npz"


@dataclass
class Config:
    """How a run is cut, and what is different in it."""

    tp: int = 1
    dp: int = 1
    flags: frozenset[str] = frozenset()
    """Names of mistakes and of harmless changes."""
    steps: int = 2

    def has(self, flag: str) -> bool:
        return flag in self.flags


@dataclass
class Run:
    """The state of a run: parameters of the whole net by name, and what ranks have dumped."""

    config: Config
    weights: dict[str, Array] = field(default_factory=dict)
    moments: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(7)

        def init(*shape: int) -> Array:
            return np.asarray(rng.normal(size=shape) / np.sqrt(shape[-1]), self.dtype)

        self.weights["embed.weight"] = init(VOCAB, HIDDEN) * self.dtype(4)
        for layer in range(LAYERS):
            self.weights |= {
                f"layers.{layer}.norm1.weight": (1 + init(HIDDEN)).astype(self.dtype),
                f"layers.{layer}.qkv.weight": init(3 * HIDDEN, HIDDEN),
                f"layers.{layer}.proj.weight": init(HIDDEN, HIDDEN),
                f"layers.{layer}.norm2.weight": (1 + init(HIDDEN)).astype(self.dtype),
                f"layers.{layer}.fc1.weight": init(FFN, HIDDEN),
                f"layers.{layer}.fc1.bias": init(FFN),
                f"layers.{layer}.fc2.weight": init(HIDDEN, FFN),
                f"layers.{layer}.fc2.bias": init(HIDDEN),
            }
        self.weights["norm.weight"] = (1 + init(HIDDEN)).astype(self.dtype)
        self.weights["head.weight"] = init(VOCAB, HIDDEN)
        self.ids = rng.integers(0, VOCAB, size=(self.config.steps, BATCH, TOKENS))
        self.targets = rng.integers(0, VOCAB, size=(self.config.steps, BATCH, TOKENS))
        self.dropout = rng.random((BATCH, TOKENS, FFN)) > 0.2

    @property
    def dtype(self) -> Any:
        return ml_dtypes.bfloat16 if self.config.has("bfloat16") else np.float32

    # Arithmetic, with harmless variants.

    def mm(self, a: Array, b: Array) -> Array:
        """Return a times b transposed."""
        a32, b32 = a.astype(np.float32), b.astype(np.float32)
        if self.config.has("micro-batches"):
            product = np.concatenate([np.ascontiguousarray(row) @ b32.T for row in a32])
            product = product.reshape(*a.shape[:-1], len(b))
        elif self.config.has("float64 sums"):
            product = np.einsum("...k,nk->...n", a32.astype(np.float64), b32.astype(np.float64))
        elif self.config.has("reversed sums"):
            product = a32[..., ::-1] @ b32[:, ::-1].T
        elif self.config.has("blocked sums"):
            step = max(a.shape[-1] // 4, 1)
            product = np.zeros((*a.shape[:-1], len(b)), np.float32)
            for begin in range(0, a.shape[-1], step):
                product = product + a32[..., begin : begin + step] @ b32[:, begin : begin + step].T
        else:
            product = a32 @ b32.T
        return np.asarray(product, self.dtype)

    def reduce(self, parts: list[Array]) -> Array:
        """Return the sum over ranks."""
        ordered = parts[::-1] if self.config.has("reversed ranks") else parts
        if self.config.has("ring reduction"):
            return self.ring(parts)
        total = np.zeros(parts[0].shape, np.float32)
        for part in ordered:
            value = part.astype(ml_dtypes.float8_e5m2) if self.config.has("BUG reduces in 8 bits") else part
            total = total + value.astype(np.float32)
        return total.astype(self.dtype)

    def ring(self, parts: list[Array]) -> Array:
        """Return the sum over ranks as a ring adds it up: each block begins with another rank."""
        blocks = [cut(part.reshape(-1), len(parts), 0) for part in parts]
        sums = []
        for number in range(len(parts)):
            total = blocks[number][number]
            for further in range(1, len(parts)):
                total = total + blocks[(number + further) % len(parts)][number]
            sums.append(total)
        return np.concatenate(sums).reshape(parts[0].shape).astype(self.dtype)

    def attend(self, scores: Array, v: Array) -> Array:
        """Return the values of `v` (..., tokens, width), averaged with the softmax of the scores."""
        if not self.config.has("flash attention"):
            return np.asarray(self.softmax(scores) @ v)
        top = np.full((*scores.shape[:-1], 1), -np.inf, np.float32)
        total, context = np.zeros_like(top), np.zeros((*scores.shape[:-1], v.shape[-1]), np.float32)
        for begin in range(0, TOKENS, 2):
            part = scores[..., begin : begin + 2]
            new = np.maximum(top, part.max(-1, keepdims=True))
            powers, old = np.exp(part - new), np.exp(top - new)
            total = total * old + powers.sum(-1, keepdims=True)
            context = context * old + powers @ v[..., begin : begin + 2, :]
            top = new
        return np.asarray(context / total)

    def norm(self, x: Array, weight: Array, layer: int = -1) -> Array:
        epsilon = 1e-1 if layer == 1 and self.config.has("BUG epsilon of a norm") else 1e-6
        wide = x.astype(np.float32)
        if self.config.has("other norm kernel"):
            scale = np.asarray(
                1 / np.sqrt(np.einsum("...k,...k->...", wide, wide) / HIDDEN + np.float32(epsilon))
            )
        else:
            scale = np.asarray((np.mean(wide**2, axis=-1) + np.float32(epsilon)) ** np.float32(-0.5))
        scaled = wide * scale[..., None].astype(np.float32) * weight.astype(np.float32)
        return np.asarray(scaled, self.dtype)

    def softmax(self, x: Array) -> Array:
        wide = x.astype(np.float32)
        top = np.float32(0) if self.config.has("other softmax kernel") else wide.max(-1, keepdims=True)
        if self.config.has("powers of 2"):
            powers = np.exp2((wide - top) * np.float32(math.log2(math.e)))
        else:
            powers = np.exp(wide - top)
        return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)


def cut(value: Array, count: int, axis: int) -> list[Array]:
    """Return the shards of a tensor; uneven if its length does not divide."""
    return np.array_split(value, count, axis=axis)


def fused(value: Array, count: int) -> list[Array]:
    """Return shards of a fused projection: each rank has its part of queries, keys and values."""
    thirds = [np.split(third, count) for third in np.split(value, 3)]
    return [np.concatenate([third[rank] for third in thirds]) for rank in range(count)]


@dataclass
class Pass:
    """One pass of one data-parallel replica; `ranks` receives what its ranks dump."""

    net: Run
    step: int
    rows: slice
    ranks: list[Dump]

    def has(self, flag: str) -> bool:
        return self.net.config.has(flag)

    def put(self, name: str, parts: list[Array]) -> None:
        for dump, part in zip(self.ranks, parts, strict=True):
            dump[name] = part

    def whole(self, name: str, value: Array) -> None:
        """Dump what all ranks have; with sequence parallelism, each has some of the tokens."""
        count = len(self.ranks)
        self.put(name, cut(value, count, 1) if self.has("sequence parallel") else [value] * count)

    def shards(self, name: str, axis: int) -> list[Array]:
        value, count = self.net.weights[name], len(self.ranks)
        if name.endswith("qkv.weight"):
            wrong = self.has("BUG fused blocks are cut as one")
            return cut(value, count, 0) if wrong else fused(value, count)
        parts = cut(value, count, axis)
        if name == "layers.1.fc1.weight" and self.has("BUG two ranks load one shard"):
            parts = [parts[0]] * count
        if name == "layers.1.fc2.weight" and self.has("BUG shards are swapped"):
            parts = parts[::-1]
        return parts

    def forward(self) -> tuple[Array, Array, list[Array], Array]:
        """Return the last hidden state, its norm, the activations of the last MLP and its input."""
        net, count = self.net, len(self.ranks)
        ids = net.ids[self.step][self.rows]
        self.put("input_ids", [ids] * count)
        if self.has("BUG a rank reads other tokens"):
            self.put("input_ids", [ids] * (count - 1) + [ids[::-1]])
        bounds = np.cumsum([0, *(len(part) for part in cut(net.weights["embed.weight"], count, 0))])
        parts = []
        for rank, shard in enumerate(cut(net.weights["embed.weight"], count, 0)):
            local = ids - bounds[rank]
            lost = self.has("BUG a token on the border of shards is lost") and rank == 0
            inside = (local >= 0) & (local < len(shard) - lost)
            part = shard[np.clip(local, 0, len(shard) - 1)]
            parts.append(part if self.has("BUG no mask in the embedding") else part * inside[..., None])
        h = net.reduce([part.astype(net.dtype) for part in parts])
        self.whole("embed", h)
        for layer in range(LAYERS):
            h = self.attention(h, layer)
            h, normed, acts = self.mlp(h, layer)
        out = net.norm(h, net.weights["norm.weight"])
        self.whole("norm", out)
        return h, out, acts, normed

    def attention(self, h: Array, layer: int) -> Array:
        net, count, name = self.net, len(self.ranks), f"layers.{layer}"
        n = net.norm(h, net.weights[f"{name}.norm1.weight"], layer)
        self.whole(f"{name}.norm1", n)
        qkv = [net.mm(n, part) for part in self.shards(f"{name}.qkv.weight", 0)]
        self.put(f"{name}.qkv", qkv)
        heads, contexts = HEADS // count, []
        width = HIDDEN // HEADS
        scale = np.sqrt(HIDDEN if self.has("BUG scale of the scores") and layer == 1 else width)
        for rank, part in enumerate(qkv):
            thirds = np.split(part, 3, axis=-1)
            if layer == 1 and self.has("BUG keys of another rank"):
                thirds[1] = np.split(qkv[rank - 1], 3, axis=-1)[1]
            q, k, v = (third.reshape(*part.shape[:2], heads, width).swapaxes(1, 2) for third in thirds)
            scores = (q.astype(np.float32) @ k.swapaxes(2, 3).astype(np.float32)) / np.float32(scale)
            ahead = 1 + (self.has("BUG mask sees one token ahead") and layer == 1)
            mask = np.triu(np.ones((TOKENS, TOKENS), bool), ahead)
            if layer == 1 and self.has("BUG tokens attend to their own chunk"):
                mask[TOKENS // 2 :, : TOKENS // 2] = True
            scores = np.where(mask, np.float32(-1e9), scores)
            context = net.attend(scores, v.astype(np.float32)).swapaxes(1, 2).reshape(*part.shape[:2], -1)
            contexts.append(context.astype(net.dtype))
        self.put(f"{name}.context", contexts)
        return h + self.row_parallel(f"{name}.proj", contexts, None, layer, h)

    def row_parallel(self, name: str, inputs: list[Array], bias: Array | None, layer: int, h: Array) -> Array:
        """Return the reduced output of a layer that is cut along its inputs, and dump both."""
        net = self.net
        parts = [net.mm(x, w) for x, w in zip(inputs, self.shards(f"{name}.weight", 1), strict=True)]
        if name == "layers.1.fc2" and self.has("BUG sums in bfloat16"):
            shards = self.shards(f"{name}.weight", 1)
            parts = [_summed_in_bfloat16(x, w) for x, w in zip(inputs, shards, strict=True)]
        if bias is not None and layer == 1 and self.has("BUG bias on every rank"):
            parts = [part + bias for part in parts]
            bias = None
        if layer == 1 and self.has("BUG residual on every rank") and bias is None:
            parts = [part + h for part in parts]
        if layer == 1 and self.has("BUG activation before the reduction") and bias is None:
            parts = [np.tanh(part.astype(np.float32)).astype(net.dtype) for part in parts]
        self.put(f"{name}.partial", parts)
        total = net.reduce(parts)
        if layer == 1 and name.endswith("proj") and self.has("BUG missing reduction"):
            self.put(name, parts)
            return parts[0]
        if name == "layers.1.proj" and self.has("BUG read before the reduction is finished"):
            total = np.concatenate([total[:-1], parts[0][-1:]])
        total = total if bias is None else total + bias
        self.whole(name, total)
        return total

    def mlp(self, h: Array, layer: int) -> tuple[Array, Array, list[Array]]:
        net, name = self.net, f"layers.{layer}"
        n = net.norm(h, net.weights[f"{name}.norm2.weight"], layer)
        self.whole(f"{name}.norm2", n)
        biases = self.shards(f"{name}.fc1.bias", 0)
        acts = []
        masks = cut(net.dropout[self.rows], len(self.ranks), 2)
        for rank, (w, b) in enumerate(zip(self.shards(f"{name}.fc1.weight", 0), biases, strict=True)):
            act = np.tanh((net.mm(n, w) + b).astype(np.float32)).astype(net.dtype)
            own = 0 if self.has("BUG one dropout seed on all ranks") and layer == 1 else rank
            acts.append(act * masks[own].astype(net.dtype))
        self.put(f"{name}.act", acts)
        if self.has("recomputation"):
            self.put(f"{name}.act.recomputed", acts)
        h = h + self.row_parallel(f"{name}.fc2", acts, net.weights[f"{name}.fc2.bias"], layer, h)
        self.whole(f"{name}.hidden", h)
        return h, n, acts

    def gradients(self) -> dict[str, Array]:
        """Run both passes; return the gradients of the parameters of head and last MLP, whole."""
        net, count = self.net, len(self.ranks)
        _, out, acts, normed = self.forward()
        shards = cut(net.weights["head.weight"], count, 0)
        logits = [net.mm(out, shard) for shard in shards]
        if self.has("padded vocabulary"):
            longest = max(len(shard) for shard in shards)
            shown = [np.pad(x, [(0, 0), (0, 0), (0, longest - x.shape[-1])]) for x in logits]
            self.put("logits", shown)
        else:
            self.put("logits", logits)
        targets = net.targets[self.step][self.rows]
        full = np.concatenate(logits, axis=-1).astype(np.float32)
        if self.has("BUG padding in the loss"):
            full = np.concatenate([full, np.zeros((*full.shape[:2], 5), np.float32)], axis=-1)
        if self.has("BUG loss of one shard"):
            probs = np.concatenate([net.softmax(part) for part in logits], axis=-1)
        else:
            probs = net.softmax(full)[..., :VOCAB]
        picked = np.take_along_axis(probs, targets[..., None], -1)
        loss = np.float32(-np.log(np.maximum(picked, 1e-30)).mean())
        self.put("loss", [np.array(loss)] * count)
        one_hot = np.eye(VOCAB, dtype=np.float32)[targets]
        d_logits = (probs - one_hot) / targets.size
        self.put("grad.logits", cut(d_logits.astype(net.dtype), count, 2))
        head = net.weights["head.weight"].astype(np.float32)
        parts = [x @ w for x, w in zip(cut(d_logits, count, 2), cut(head, count, 0), strict=True)]
        d_out = net.reduce([part.astype(net.dtype) for part in parts]).astype(np.float32)
        if self.has("BUG sign of a gradient"):
            d_out = -d_out
        self.whole("grad.norm", d_out.astype(net.dtype))
        d_act = np.concatenate([d_out @ w for w in cut(net.weights[_FC2].astype(np.float32), count, 1)], -1)
        act = np.concatenate(acts, -1).astype(np.float32)
        kept = net.dropout[self.rows]
        if self.has("BUG recomputation drops others"):
            kept = kept[:, :, ::-1]
        d_pre = d_act * (1 - act**2) * kept
        self.put(f"grad.{_LAST}.act", cut(d_pre.astype(net.dtype), count, 2))
        inputs = {"head.weight": (d_logits, out), _FC2: (d_out, act), _FC1: (d_pre, normed)}
        gradients = {name: _outer(d, x) for name, (d, x) in inputs.items()}
        gradients[f"{_LAST}.fc1.bias"] = d_pre.sum((0, 1))
        gradients[f"{_LAST}.fc2.bias"] = d_out.sum((0, 1))
        return gradients


_LAST = f"layers.{LAYERS - 1}"
_FC1, _FC2 = f"{_LAST}.fc1.weight", f"{_LAST}.fc2.weight"
#: Along which axis the parameters are cut, by the end of their names; others are replicated.
AXES = {"embed.weight": 0, "qkv.weight": 0, "proj.weight": 1, "fc1.weight": 0, "fc1.bias": 0, "fc2.weight": 1}
AXES["head.weight"] = 0


def _outer(d: Array, x: Array) -> Array:
    product = np.einsum("bsn,bsk->nk", d.astype(np.float32), x.astype(np.float32))
    return np.asarray(product)


def _summed_in_bfloat16(x: Array, w: Array) -> Array:
    """Return x times w transposed, rounded to bfloat16 after each addition."""
    total = np.zeros((*x.shape[:-1], len(w)), ml_dtypes.bfloat16)
    for column in range(x.shape[-1]):
        total = total + (x[..., column, None] * w[:, column]).astype(ml_dtypes.bfloat16)
    return np.asarray(total.astype(x.dtype))


def simulate(config: Config) -> list[list[Dump]]:
    """Return what each rank dumps, by step and rank; ranks of tensor parallelism are neighbours."""
    net = Run(config)
    before = net.weights
    dumped = []
    for step in range(config.steps):
        passes = []
        size = BATCH // config.dp
        for replica in range(config.dp):
            rows = slice(replica * size, (replica + 1) * size)
            passes.append(Pass(net, step, rows, [{} for _ in range(config.tp)]))
        local = [each.gradients() for each in passes]
        averaged = _averaged(config, local)
        ranks = [rank for each in passes for rank in each.ranks]
        for number, dump in enumerate(ranks):
            own = local[number // config.tp]
            _dump_parameters(net, dump, number, averaged=averaged, own=own, before=before)
        before = net.weights
        net.weights = _updated(net, averaged)
        dumped.append(ranks)
    return dumped


def _averaged(config: Config, local: list[dict[str, Array]]) -> dict[str, Array]:
    scale = 1.0 if config.has("BUG gradients are summed") else 1 / len(local)
    if config.has("BUG gradients are averaged twice"):
        scale /= len(local)
    return {name: np.asarray(sum(each[name] for each in local) * np.float32(scale)) for name in local[0]}


def _dump_parameters(net: Run, dump: Dump, number: int, *, averaged: Dump, own: Dump, before: Dump) -> None:
    config = net.config
    rank, last = number % config.tp, number == config.tp * config.dp - 1
    for name, weight in net.weights.items():
        value = before[name] if last and name == _FC1 and config.has("BUG a rank is not updated") else weight
        if last and name == f"{_LAST}.fc2.bias" and config.has("BUG replicas drift apart"):
            value = value + np.float32(0.01)
        gradient = averaged.get(name)
        if gradient is not None and name == _FC2 and config.has("BUG a gradient is not reduced"):
            gradient = own[name]
        for prefix, tensor in (("param", value), ("grad.param", gradient)):
            if tensor is not None:
                held = _held(config, name, tensor.astype(net.dtype), rank, number)
                clips = prefix == "grad.param" and config.has("BUG each rank clips by its own norm")
                dump[f"{prefix}.{name}"] = _clipped(held) if clips else held


def _clipped(gradient: Array) -> Array:
    return np.asarray(gradient / max(np.linalg.norm(gradient) / 0.01, 1.0), gradient.dtype)


def _held(config: Config, name: str, tensor: Array, rank: int, number: int) -> Array:
    if config.has("fully sharded"):
        return np.array_split(tensor, config.tp * config.dp)[number]
    axis = next((axis for end, axis in AXES.items() if name.endswith(end)), None)
    if axis is None:
        return tensor
    if name.endswith("qkv.weight"):
        return fused(tensor, config.tp)[rank]
    return cut(tensor, config.tp, axis)[rank]


def _updated(net: Run, gradients: dict[str, Array]) -> dict[str, Array]:
    """Return the parameters after a step of Adam."""
    weights = dict(net.weights)
    for name, gradient in gradients.items():
        first, second = net.moments.get(name, (np.float32(0), np.float32(0)))
        first = np.float32(0.9) * first + np.float32(0.1) * gradient
        second = np.float32(0.99) * second + np.float32(0.01) * gradient**2
        net.moments[name] = first, second
        if net.config.has("other optimizer kernel"):
            scale = 0.01 / (np.sqrt(second.astype(np.float64)) + 1e-8)
            change = (first * scale).astype(np.float32)
        else:
            change = np.float32(0.01) * first / (np.sqrt(second) + np.float32(1e-8))
        decay = 0.1 if net.config.has("BUG weight decay") else 0.0
        weights[name] = (weights[name].astype(np.float32) * np.float32(1 - decay) - change).astype(net.dtype)
    return weights


def held_in_four_ways(whole: Array) -> list[Dump]:
    """Return what two ranks hold of a tensor: cut, on both, as parts of a sum, and on the first alone."""
    middle = len(whole) // 2
    return [
        {"cut": whole[:middle], "same": whole, "summed": whole - 1, "alone": whole},
        {"cut": whole[middle:], "same": whole, "summed": np.ones_like(whole)},
    ]


def write(root: Path, dumped: list[list[Dump]]) -> Path:
    """Write what ranks dumped as files."""
    for step, ranks in enumerate(dumped):
        for rank, dump in enumerate(ranks):
            path = root / f"rank{rank}" / f"step{step}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(path, "w") as archive:
                for name, value in dump.items():
                    archive.writestr(f"{name}.npy", npy_bytes(np.asarray(value, order="C")))
    return root


# Runs whose ranks hold the tensors of a net in a layout, and the answer of `layout` about them.


Lay = Callable[..., RunLayout]


def layout_of(root: Path, steps: list[list[Dump]]) -> RunLayout:
    """Ingest what ranks hold in each step, and ask for the layout."""
    write(root / "dump", steps)
    ingest_directly(root / "dump", root / "store", layout=LAYOUT)
    return ingest.layout(ingest.open_store(root / "store"))
