"""A trainer and an engine as people write them: the same model, other names, other cuts, other batches."""

import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

import ingest

HIDDEN, HEADS, SHARED, SIZE, INNER, VOCABULARY, LAYERS = 32, 4, 2, 16, 48, 64, 3


@dataclass(frozen=True)
class Model:
    """What both sides have to agree on, and what may be wrong on one of them."""

    base: float = 10000.0
    factor: float = 1.0
    eps: float = 1e-5
    window: int = 0
    ahead: int = 0
    scale: float = 0.0
    cache: torch.dtype | None = None
    temperature: float = 1.0
    final_norm: bool = True
    tied: bool = False
    interleaved: bool = False
    router: torch.dtype | None = None
    experts: int = 0
    capacity: int = 0
    """How many tokens of a call an expert takes; 0: all."""
    act: str = "silu"
    residual: float = 1.0
    eager: bool = False
    flash: bool = False
    shift: int = 0
    ranks: int = 1
    wrong_layer: int = -1
    """The only layer in which the mistake is; -1: in all."""


class Norm(nn.Module):  # type: ignore[misc]
    """RMS norm; with a residual, of the sum, as engines fuse it."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> object:
        """Return the normalised rows, and the sum if there is a residual."""
        if residual is not None:
            x = x + residual
        rows = x.float()
        rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.eps)
        out = self.weight * rows.to(x.dtype)
        return out if residual is None else (out, x)


def turned(x: torch.Tensor, places: torch.Tensor, model: Model) -> torch.Tensor:
    """Return heads (..., token, head, element) with rotary embeddings."""
    size = x.shape[-1]
    rates = model.base ** -(torch.arange(0, size, 2, dtype=torch.float32) / size) / model.factor
    angles = (places[..., None].float() * rates)[..., None, :]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if model.interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, model: Model
) -> torch.Tensor:
    """Return attention of heads (..., head, token, element)."""
    k, v = (each.repeat_interleave(q.shape[-3] // each.shape[-3], -3) for each in (k, v))
    scale = model.scale or 1 / math.sqrt(q.shape[-1])
    if not model.eager:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    scores = (q @ k.transpose(-1, -2)) * scale
    scores = scores.masked_fill(~seen, torch.finfo(q.dtype).min)
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


def seen_keys(queries: torch.Tensor, keys: torch.Tensor, model: Model) -> torch.Tensor:
    """Return which keys queries at these positions see."""
    seen = keys[None, :] <= queries[:, None] + model.ahead
    return seen & (keys[None, :] > queries[:, None] - model.window) if model.window else seen


class TrainerAttention(nn.Module):  # type: ignore[misc]
    """Attention of a trainer: projections apart, whole sequences with padding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.q_proj = nn.Linear(HIDDEN, HEADS * SIZE, bias=True)
        self.k_proj = nn.Linear(HIDDEN, SHARED * SIZE, bias=True)
        self.v_proj = nn.Linear(HIDDEN, SHARED * SIZE, bias=True)
        self.o_proj = nn.Linear(HEADS * SIZE, HIDDEN, bias=False)

    def forward(self, hidden: torch.Tensor, position_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attend within rows of a batch."""
        q, k, v = (each(hidden).unflatten(-1, (-1, SIZE)) for each in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, position_ids, self.model), turned(k, position_ids, self.model)
        if self.model.cache is not None:
            k, v = (each.to(self.model.cache).to(each.dtype) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        out = attended(q, k, v, mask, self.model)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class TrainerMLP(nn.Module):  # type: ignore[misc]
    """A gated MLP, gate and up apart."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, HIDDEN, bias=False)
        self.act_fn = nn.SiLU() if model.act == "silu" else nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated product."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):  # type: ignore[misc]
    """A router and experts, of which each token takes two."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.gate = nn.Linear(HIDDEN, model.experts, bias=False)
        self.experts = nn.ModuleList(TrainerMLP(model) for _ in range(model.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weighted outputs of two experts."""
        rows = x.reshape(-1, HIDDEN)
        logits = self.gate(rows)
        if self.model.router is not None:
            logits = logits.to(self.model.router)
        weights, chosen = logits.float().softmax(-1).topk(2, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, place = (each[: self.model.capacity or None] for each in torch.where(chosen == number))
            if len(token):
                out.index_add_(0, token, expert(rows[token]) * weights[token, place, None])
        return out.reshape(x.shape)


class TrainerLayer(nn.Module):  # type: ignore[misc]
    """A layer with residual sums between modules."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.input_layernorm = Norm(HIDDEN, model.eps)
        self.self_attn = TrainerAttention(model)
        self.post_attention_layernorm = Norm(HIDDEN, model.eps)
        self.mlp = Experts(model) if model.experts else TrainerMLP(model)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        x = x + self.self_attn(self.input_layernorm(x), position_ids, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class TrainerBody(nn.Module):  # type: ignore[misc]
    """Embedding and layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(TrainerLayer(of_layer(model, number)) for number in range(LAYERS))
        self.norm = Norm(HIDDEN, model.eps)


class Trainer(nn.Module):  # type: ignore[misc]
    """The model as Hugging Face names it."""

    def __init__(self, model: Model = Model()) -> None:
        super().__init__()
        self.settings = model
        self.model = TrainerBody(model)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        if model.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        random = torch.Generator().manual_seed(0)
        for name, each in self.named_parameters():
            drawn = torch.randn(each.shape, generator=random)
            each.data = 1 + 0.2 * drawn if "norm" in name else drawn * (0.7 / math.sqrt(each.shape[-1]))
        self.model.embed_tokens.weight.data *= 2

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return logits; where positions restart, another sequence begins."""
        length = input_ids.shape[1]
        at = torch.arange(length)
        begins = torch.cummax(torch.where(position_ids == 0, at, 0), 1).values
        begins = torch.where(attention_mask.bool(), begins, -1)
        same = begins[:, :, None] == begins[:, None, :]
        x = self.model.embed_tokens(input_ids)
        for layer in self.model.layers:
            seen = seen_keys(at, at, layer.self_attn.model) & same
            x = layer(x, position_ids, (seen | torch.eye(length, dtype=torch.bool))[:, None])
        return self.lm_head(self.model.norm(x) if self.settings.final_norm else x) / self.settings.temperature


class RowLinear(nn.Linear):  # type: ignore[misc]
    """A product of which each rank has a part of the sum."""

    def __init__(self, inner: int, model: Model) -> None:
        super().__init__(inner // model.ranks, HIDDEN, bias=False)
        self.reduce: Callable[[torch.Tensor], torch.Tensor] = lambda part: part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks."""
        return self.reduce(super().forward(x))


class EngineAttention(nn.Module):  # type: ignore[misc]
    """Attention of an engine: one projection, flattened tokens, a cache."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.widths = [count * SIZE // model.ranks for count in (HEADS, SHARED, SHARED)]
        self.qkv_proj = nn.Linear(HIDDEN, sum(self.widths), bias=True)
        self.o_proj = RowLinear(HEADS * SIZE, model)
        self.cache: dict[int, list[torch.Tensor]] = {}

    def forward(self, positions: torch.Tensor, x: torch.Tensor, requests: Sequence[int]) -> torch.Tensor:
        """Attend to what is cached of each request."""
        q, k, v = self.qkv_proj(x).split(self.widths, -1)
        q, k, v = (each.unflatten(-1, (-1, SIZE)) for each in (q, k, v))
        q, k = turned(q, positions, self.model), turned(k, positions, self.model)
        out = torch.empty_like(q)
        for request in dict.fromkeys(requests):
            rows = torch.tensor([place for place, each in enumerate(requests) if each == request])
            new = [torch.cat([k[rows], v[rows]], -1)]
            if self.model.cache is not None:
                new = [each.to(self.model.cache).to(each.dtype) for each in new]
            held = torch.cat([*self.cache.get(request, []), *new])
            self.cache[request] = [held]
            keys, values = held.chunk(2, -1)
            keys_at = torch.arange(len(held))
            seen = seen_keys(keys_at[len(held) - len(rows) :], keys_at, self.model)
            one, two, three = (each.transpose(0, 1) for each in (q[rows], keys, values))
            out[rows] = attended(one, two, three, seen, self.model).transpose(0, 1)
        return self.o_proj(out.flatten(-2))


class SiluAndMul(nn.Module):  # type: ignore[misc]
    """The gated product of the halves of a row."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return half as many elements."""
        gate, up = x.chunk(2, -1)
        return (functional.silu(gate) if self.act == "silu" else functional.gelu(gate)) * up


class EngineMLP(nn.Module):  # type: ignore[misc]
    """A gated MLP, gate and up in one projection."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(HIDDEN, 2 * INNER // model.ranks, bias=False)
        self.act_fn = SiluAndMul(model.act)
        self.down_proj = RowLinear(INNER, model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated product."""
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class EngineLayer(nn.Module):  # type: ignore[misc]
    """A layer whose norms add the residual."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.input_layernorm = Norm(HIDDEN, model.eps)
        self.self_attn = EngineAttention(model)
        self.post_attention_layernorm = Norm(HIDDEN, model.eps)
        self.mlp = Experts(model) if model.experts else EngineMLP(model)

    def forward(
        self,
        positions: torch.Tensor,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        requests: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output of the MLP, and the residual."""
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(
            self.self_attn(positions, x, requests), residual * self.model.residual
        )
        return self.mlp(x), residual


class EngineBody(nn.Module):  # type: ignore[misc]
    """Embedding and layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(EngineLayer(of_layer(model, number)) for number in range(LAYERS))
        self.norm = Norm(HIDDEN, model.eps)


class Engine(nn.Module):  # type: ignore[misc]
    """The model as engines name it."""

    def __init__(self, model: Model = Model()) -> None:
        super().__init__()
        self.settings = model
        self.model = EngineBody(model)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, requests: Sequence[int]
    ) -> torch.Tensor:
        """Return logits of all tokens."""
        x, residual = self.model.embed_tokens(input_ids), None
        for layer in self.model.layers:
            x, residual = layer(positions + self.settings.shift, x, residual, requests)
        x = self.model.norm(x, residual)[0] if self.settings.final_norm else x + residual
        return self.lm_head(x) / self.settings.temperature


def of_layer(model: Model, number: int) -> Model:
    """Return the settings of one layer."""
    return model if model.wrong_layer in (-1, number) else Model(experts=model.experts, ranks=model.ranks)


def take_weights(engine: Engine, trainer: Trainer, rank: int = 0) -> Engine:
    """Load the weights of a trainer into an engine, fused, or the shards of a rank."""
    of = dict(trainer.state_dict())
    ranks = engine.settings.ranks
    for name, each in engine.named_parameters():
        if "qkv_proj" in name:
            parts = [of[name.replace("qkv", part)].chunk(ranks)[rank] for part in "qkv"]
        elif "gate_up_proj" in name:
            parts = [of[name.replace("gate_up", part)].chunk(ranks)[rank] for part in ("gate", "up")]
        elif "o_proj" in name or ("down_proj" in name and "experts" not in name):
            parts = [of[name].chunk(ranks, 1)[rank]]
        else:
            parts = [of[name]]
        each.data = torch.cat(parts).clone()
    return engine


def record_ranks(engines: Sequence[Engine], root: Path, run: Callable[[nn.Module], None]) -> Path:
    """Run the ranks of an engine side by side for their sums, and record each with these."""
    barrier, parts = threading.Barrier(len(engines)), [torch.zeros(0)] * len(engines)
    sums: list[torch.Tensor] = []

    def together(rank: int) -> None:
        def reduce(part: torch.Tensor) -> torch.Tensor:
            parts[rank] = part
            barrier.wait()
            total = torch.stack(parts).sum(0)
            sums.extend([total] if rank == 0 else [])
            barrier.wait()
            return total

        _reduce_by(engines[rank], reduce)
        with torch.no_grad():
            run(engines[rank])

    threads = [threading.Thread(target=together, args=(rank,)) for rank in range(len(engines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, engine in enumerate(engines):
        known = iter(sums)
        _reduce_by(engine, lambda _, known=known: next(known))  # type: ignore[misc]
        with patch.dict(os.environ, {"RANK": str(rank), "WORLD_SIZE": str(len(engines))}):
            record(engine, root, run)
    return root


def _reduce_by(engine: Engine, reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for module in engine.modules():
        if isinstance(module, RowLinear):
            module.reduce = reduce


def prompts(count: int = 3, longer: int = 0) -> list[list[int]]:
    """Return sequences of token ids of different lengths."""
    random = torch.Generator().manual_seed(5)
    lengths = [19, 9, 14, 12, 23][:count]
    return [torch.randint(3, VOCABULARY, (each + longer,), generator=random).tolist() for each in lengths]


def record(program: nn.Module, root: Path, run: Callable[[nn.Module], None], step: int = 0) -> Path:
    """Record one step of a program, parameters included."""
    with (
        torch.no_grad(),
        ingest.record(
            program,
            root,
            what="tensors",
            of=("inputs", "outputs", "parameters"),
            advance="manual",
            first_step=step,
        ),
    ):
        run(program)
    return root


def padded(sequences: Sequence[Sequence[int]], *, left: bool = False) -> Callable[[nn.Module], None]:
    """Return a run of a trainer on a padded batch."""
    length = max(map(len, sequences))

    def run(program: nn.Module) -> None:
        pads = [[0] * (length - len(each)) for each in sequences]
        ids = [[*pad, *each] if left else [*each, *pad] for pad, each in zip(pads, sequences, strict=True)]
        mask = [
            [0] * len(pad) + [1] * len(each) if left else [1] * len(each) + [0] * len(pad)
            for pad, each in zip(pads, sequences, strict=True)
        ]
        seen = torch.tensor(mask)
        program(torch.tensor(ids), attention_mask=seen, position_ids=(seen.cumsum(1) - 1).clamp(min=0))

    return run


def packed(sequences: Sequence[Sequence[int]]) -> Callable[[nn.Module], None]:
    """Return a run of a trainer on sequences one behind the other."""

    def run(program: nn.Module) -> None:
        ids = torch.tensor([[token for each in sequences for token in each]])
        places = torch.cat([torch.arange(len(each)) for each in sequences])[None]
        program(ids, attention_mask=torch.ones_like(ids), position_ids=places)

    return run


def mixed(sequences: Sequence[Sequence[int]]) -> Callable[[nn.Module], None]:
    """Return a run of an engine that takes all sequences for one request."""

    def run(program: nn.Module) -> None:
        program.apply(lambda module: getattr(module, "cache", {}).clear())
        ids = torch.tensor([token for each in sequences for token in each])
        program(ids, torch.cat([torch.arange(len(each)) for each in sequences]), [0] * len(ids))

    return run


def served(
    sequences: Sequence[Sequence[int]], *, chunk: int = 0, decode: int = 0, late: int = 0
) -> Callable[[nn.Module], None]:
    """Return a run of an engine: prompts in chunks, and the last tokens one by one for all requests.

    Positions of tokens that are decoded are too large by `late`.
    """

    def run(program: nn.Module) -> None:
        program.apply(lambda module: getattr(module, "cache", {}).clear())
        at = [0] * len(sequences)
        ends = [len(each) - decode for each in sequences]
        while at != [len(each) for each in sequences]:
            ids: list[int] = []
            places: list[int] = []
            requests: list[int] = []
            is_prompt = any(begin < end for begin, end in zip(at, ends, strict=True))
            for number, each in enumerate(sequences):
                if at[number] < ends[number]:
                    end = min(at[number] + (chunk or len(each)), ends[number])
                elif not is_prompt and at[number] < len(each):
                    end = at[number] + 1
                else:
                    continue
                ids += each[at[number] : end]
                shift = 0 if is_prompt else late
                places += range(at[number] + shift, end + shift)
                requests += [number] * (end - at[number])
                at[number] = end
            program(torch.tensor(ids), torch.tensor(places), requests)

    return run


def sides(
    root: Path,
    *,
    trainer: Model = Model(),
    engine: Model | None = None,
    batch: Callable[[nn.Module], None] | None = None,
    serve: Callable[[nn.Module], None] | None = None,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
    spoil: Callable[[nn.Module], object] | None = None,
) -> tuple[Path, Path]:
    """Record a trainer and an engine, and return both dumps."""
    a, own = Trainer(trainer).to(dtypes[0]), prompts()
    settings = engine or trainer
    engines = [take_weights(Engine(settings), a, rank).to(dtypes[1]) for rank in range(settings.ranks)]
    if spoil is not None:
        spoil(engines[-1])
    record(a, root / "trainer", batch or padded(own))
    record_ranks(engines, root / "rollout", serve or served(own))
    return root / "trainer", root / "rollout"


__all__ = [
    "Engine",
    "Model",
    "Trainer",
    "mixed",
    "packed",
    "padded",
    "prompts",
    "record",
    "replace",
    "served",
    "sides",
]
