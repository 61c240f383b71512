"""`python -m proving.rollouts`: models of `transformers` as trainer and rollout, with known mistakes.

It needs `pip install transformers`. Weights are random, and both sides run on the CPU in other batches. A
case is `right` if the module is named in which the mistake is, with the words that say it; `unsaid` without
the words; `wrong` if another module or side is named; `open` if nothing is. A harmless case is `right` if
nothing is alarmed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_moe import modeling_qwen3_moe

import ingest
from ingest.questions.rollout.by_token import TokenComparison

Run: TypeAlias = Callable[[Any], object]
Sequences: TypeAlias = Sequence[Sequence[int]]

_COMMON = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "vocab_size": 96}
#: By architecture what is set besides.
_SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 8},
    "phi3": {},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
    "olmo2": {},
    "gpt_neox": {"num_key_value_heads": 4},
    "gpt2": _GPT2 | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}


def model(kind: str, seed: int = 0, **settings: Any) -> Any:
    """Return a model with random weights: the same for the same seed."""
    common = {} if kind == "gpt2" else _COMMON
    config = AutoConfig.for_model(kind, **common | _SETTINGS[kind] | settings)
    made = AutoModelForCausalLM.from_config(
        config, attn_implementation=settings.get("attn_implementation", "eager")
    ).eval()
    random = torch.Generator().manual_seed(seed)
    for name, each in made.named_parameters():
        drawn = torch.randn(each.shape, generator=random)
        if each.ndim == 1:
            each.data += (0.2 if "norm" in name or "ln_" in name else 0.1) * drawn
        else:
            is_embedding = any(part in name for part in ("embed", "wte", "wpe"))
            each.data = drawn * (1 if is_embedding else 0.7 / each.shape[-1] ** 0.5)
    return made


def prompts(longer: int = 0) -> list[list[int]]:
    """Return sequences of token ids of different lengths."""
    random = torch.Generator().manual_seed(5)
    return [torch.randint(3, 96, (each + longer,), generator=random).tolist() for each in (19, 9, 14)]


def padded(sequences: Sequences, *, left: bool = False, masked: bool = True, **more: Any) -> Run:
    """Run one padded batch."""

    def run(program: Any) -> None:
        length = max(map(len, sequences))
        ids, seen = torch.zeros(2, len(sequences), length, dtype=torch.int64)
        for row, each in enumerate(sequences):
            at = slice(length - len(each), None) if left else slice(0, len(each))
            ids[row, at], seen[row, at] = torch.tensor(each), 1
        places = (seen.cumsum(1) - 1).clamp(min=0)
        mask = seen if masked else torch.ones_like(seen)
        program(input_ids=ids, attention_mask=mask, position_ids=places, **more)

    return run


def packed(sequences: Sequences, *, use_cache: bool = False) -> Run:
    """Run the sequences one behind the other; with a cache, `transformers` does not see where they begin."""

    def run(program: Any) -> None:
        ids = torch.tensor([[token for each in sequences for token in each]])
        places = torch.cat([torch.arange(len(each)) for each in sequences])[None]
        program(input_ids=ids, position_ids=places, use_cache=use_cache)

    return run


def alone(sequences: Sequences) -> Run:
    """Run each sequence by itself."""
    return served_each(sequences, 0)


def served_each(sequences: Sequences, decode: int, chunk: int = 0, shift: int = 0) -> Run:
    """Run each sequence by itself: its prompt, or chunks of it, and the last tokens one by one with a cache.

    `shift` is added to the positions of tokens that are decoded.
    """

    def run(program: Any) -> None:
        for each in sequences:
            cache, end = DynamicCache(), len(each) - decode
            begins = [*range(0, end, chunk or end), *range(end, len(each))]
            for begin, stop in zip(begins, [*begins[1:], len(each)], strict=True):
                places = torch.arange(begin, stop)[None] + (shift if begin >= end else 0)
                ids = torch.tensor([each[begin:stop]])
                program(input_ids=ids, position_ids=places, cache=cache, use_cache=True)

    return run


_PADDED = padded(prompts(), use_cache=False)


@dataclass(frozen=True, slots=True)
class Side:
    """One of both programs, and how it runs."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    edit: Callable[[Any], Any] = lambda program: program
    """Changes the program, or returns another one."""
    run: Run = _PADDED
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    dtype: torch.dtype = torch.float32
    update: Callable[[Any], Any] | None = None
    """Changes the program after the first step; the second step is the one that is compared."""


@dataclass(frozen=True, slots=True)
class RolloutCase:
    """A pair of programs, and what has to be said of it."""

    name: str
    kind: str
    trainer: Side = Side()
    rollout: Side = Side()
    modules: tuple[str, ...] = ()
    """Any of them may be named; none: the pair is harmless, or the weights have to be named."""
    words: str = ""
    weights: str = ""
    """What has to be said of the weights."""
    side: str = "rollout"

    @property
    def is_planted(self) -> bool:
        """Whether one side makes a mistake."""
        return bool(self.modules or self.weights)

    def verdict(self, answer: TokenComparison) -> str:
        """Return `right`, `wrong` or `open`."""
        found = answer.divergence
        if not self.is_planted:
            return "wrong" if answer.is_alarm else "right"
        if self.weights:
            return "right" if any(self.weights in each for each in answer.weights) else "open"
        if found is None:
            return "wrong" if answer.weights else "open"
        if found.module not in self.modules or found.side not in (self.side, ""):
            return "wrong"
        return "right" if self.words in found.text else "unsaid"


def record(side: Side, kind: str, root: Path) -> str:
    """Record a step of a side, or two with an update between them."""
    program = side.edit(model(kind, **side.settings).to(side.dtype))
    for step in range(1 if side.update is None else 2):
        if step and side.update is not None:
            side.update(program)
        recording = ingest.record(
            program,
            root,
            what="tensors",
            of=("inputs", "outputs", "parameters"),
            advance="manual",
            first_step=step,
        )
        with torch.no_grad(), side.around(), recording:
            side.run(program)
    return str(root)


# Edits of programs


def _without(name: str) -> Callable[[Any], Any]:
    """Leave a module out."""

    def edit(program: Any) -> Any:
        owner, _, last = name.rpartition(".")
        setattr(program.get_submodule(owner), last, torch.nn.Identity())
        return program

    return edit


def _set(name: str, **values: Any) -> Callable[[Any], Any]:
    """Set attributes of a module."""

    def edit(program: Any) -> Any:
        for key, value in values.items():
            setattr(program.get_submodule(name), key, value)
        return program

    return edit


def _parameter(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def edit(program: Any) -> Any:
        each = program.get_parameter(name)
        each.data = change(each.data).clone()
        return program

    return edit


class Temperature(torch.nn.Module):
    """A model whose logits are divided, or turned into log-probabilities."""

    def __init__(self, model: Any, finish: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.finish = model, finish

    def forward(self, **more: Any) -> torch.Tensor:
        """Return what is made of the logits."""
        return self.finish(self.inner(**more).logits)


def _finished(finish: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return lambda program: Temperature(program, finish)


class LowRank(torch.nn.Module):
    """An adapter beside a product, as PEFT adds it."""

    def __init__(self, base: Any, scale: float) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.base_layer, self.scale = base, scale
        self.lora_A, self.lora_B = (
            torch.nn.Linear(base.in_features, 4, bias=False),
            torch.nn.Linear(4, base.out_features, bias=False),
        )
        for each in (self.lora_A, self.lora_B):
            each.weight.data = torch.randn(each.weight.shape, generator=random) * 0.2

    def forward(self, x: Any) -> Any:
        """Return the sum."""
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scale


def _adapted(name: str, scale: float = 2.0, *, merge: bool = False) -> Callable[[Any], Any]:
    def edit(program: Any) -> Any:
        owner, _, last = name.rpartition(".")
        base = program.get_submodule(name)
        adapter = LowRank(base, scale)
        if merge:
            base.weight.data += scale * adapter.lora_B.weight.data @ adapter.lora_A.weight.data
        else:
            setattr(program.get_submodule(owner), last, adapter)
        return program

    return edit


# Changes around a run


def _cached(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], AbstractContextManager[Any]]:
    """Change keys and values on their way into the cache."""
    plain = DynamicLayer.update

    def update(self: Any, keys: Any, values: Any, *args: Any, **more: Any) -> Any:
        return plain(self, change(keys), change(values), *args, **more)

    return lambda: patch.object(DynamicLayer, "update", update)


def _repeated() -> AbstractContextManager[Any]:
    """Give query heads the key heads in turn, and not in groups."""
    return patch.object(modeling_llama, "repeat_kv", lambda x, count: x.repeat(1, count, 1, 1))


def _interleaved() -> AbstractContextManager[Any]:
    """Turn neighbours, and not halves."""

    def rotated(q: Any, k: Any, cos: Any, sin: Any, **_: Any) -> Any:
        half = cos.shape[-1] // 2
        cos, sin = (each[..., :half].repeat_interleave(2, -1)[:, None] for each in (cos, sin))

        def turned(x: Any) -> Any:
            other = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
            return x * cos + other * sin

        return turned(q), turned(k)

    return patch.object(modeling_llama, "apply_rotary_pos_emb", rotated)


def _router(dtype: torch.dtype) -> Callable[[], AbstractContextManager[Any]]:
    """Compute the router's logits, or its probabilities, in another type."""

    def forward(self: Any, hidden: Any) -> Any:
        hidden = hidden.reshape(-1, self.hidden_dim)
        logits = functional.linear(hidden.to(dtype), self.weight.to(dtype)).to(hidden.dtype)
        top, chosen = logits.float().softmax(-1).topk(self.top_k, -1)
        return logits, (top / top.sum(-1, keepdim=True)).to(logits.dtype), chosen

    return lambda: patch.object(modeling_qwen3_moe.Qwen3MoeTopKRouter, "forward", forward)


def _doubled() -> AbstractContextManager[Any]:
    """Add the residual of layer 1 twice."""
    plain = modeling_llama.LlamaDecoderLayer.forward

    def forward(self: Any, hidden: Any, **more: Any) -> Any:
        if self.self_attn.layer_idx != 1:
            return plain(self, hidden, **more)
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden), **more)
        hidden = 2 * hidden + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    return patch.object(modeling_llama.LlamaDecoderLayer, "forward", forward)


def _skipped(program: Any) -> Any:
    """Let layer 1 return what it reads."""
    program.model.layers[1].forward = lambda hidden, **_: hidden
    return program


def _updated(program: Any, skip: str = "nothing") -> Any:
    """Add a small update to all weights but those of a layer."""
    random = torch.Generator().manual_seed(2)
    for name, each in program.named_parameters():
        change = 1e-3 * torch.randn(each.shape, generator=random)
        each.data = each.data if skip in name else each.data + change
    return program


_SERVED = served_each(prompts(), 4, 5)
_AS_SERVED = Side(run=_SERVED)


def _o(layer: int) -> str:
    return f"model.layers.{layer}.self_attn.o_proj"


def _planted(
    name: str, kind: str, modules: str | tuple[str, ...], words: str = "", **rollout: Any
) -> RolloutCase:
    """Return a case in which the rollout makes a mistake."""
    named = (modules,) if isinstance(modules, str) else modules
    settings: dict[str, Any] = {"run": _SERVED} | rollout
    return RolloutCase(name, kind, Side(), Side(**settings), named, words)


def _settings(
    name: str, kind: str, modules: str | tuple[str, ...], words: str = "", **settings: Any
) -> RolloutCase:
    return _planted(name, kind, modules, words, settings=settings)


def _rope(**values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0} | values}


def _harmless() -> list[RolloutCase]:
    own = prompts()
    pairs = [
        RolloutCase(f"{kind}: padded against chunks and decoding", kind, Side(), _AS_SERVED)
        for kind in _SETTINGS
    ]
    pairs += [
        RolloutCase(f"{kind}: packed against padding on the left", kind, Side(run=packed(own)),
                    Side(run=padded(own, left=True, use_cache=False)))
        for kind in ("llama", "qwen3", "phi3", "qwen3_moe", "olmo2")
    ]  # fmt: skip
    pairs += [
        RolloutCase(f"{kind}: eager against sdpa", kind, Side(),
                    Side({"attn_implementation": "sdpa"}, run=alone(own)))
        for kind in ("llama", "qwen3", "mistral", "mixtral")
    ]  # fmt: skip
    pairs += [
        RolloutCase(f"{kind}: float32 against bfloat16", kind, Side(),
                    Side(run=_SERVED, dtype=torch.bfloat16))
        for kind in ("llama", "qwen3", "gemma", "olmo2")
    ]  # fmt: skip
    both: dict[str, Any] = {"run": _SERVED, "dtype": torch.bfloat16}
    pairs += [
        RolloutCase(f"{kind}: bfloat16 on both", kind, Side(dtype=torch.bfloat16), Side(**both))
        for kind in ("qwen2", "mistral", "phi3", "qwen3_moe", "gpt2")
    ]
    merged = Side(edit=_adapted("model.layers.1.self_attn.q_proj", merge=True), run=_SERVED)
    adapted = Side(edit=_adapted("model.layers.1.self_attn.q_proj"))
    return [
        *pairs,
        RolloutCase("llama: positions from one", "llama", Side(), Side(run=_SERVED)),
        RolloutCase("llama: an adapter that is merged", "llama", adapted, merged),
        RolloutCase(
            "llama: log-probabilities", "llama",
            Side(edit=_finished(lambda x: functional.log_softmax(x, -1))),
            Side(run=_SERVED, edit=_finished(lambda x: x - x.logsumexp(-1, keepdim=True))),
        ),
    ]  # fmt: skip


def _cases() -> list[RolloutCase]:
    q, down = "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"
    norm, after = "model.layers.{}.input_layernorm", "model.layers.{}.post_attention_layernorm"
    fp8 = torch.float8_e4m3fn
    router = "model.layers.0.mlp.gate"
    own = prompts()
    return [
        *_harmless(),
        _settings("base of the rotation", "llama", _o(0), "base 500000", **_rope(rope_theta=500000.0)),
        _settings("base of the rotation, qwen3", "qwen3", _o(0), "base 1e+06", **_rope(rope_theta=1e6)),
        _settings("rope scaling, linear", "llama", _o(0), "divided by 4",
                  **_rope(rope_type="linear", factor=4.0)),
        _settings("rope scaling, llama3", "llama", _o(0), "rotation",
                  **_rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=32)),
        _settings("rope scaling, yarn", "qwen2", _o(0), "rotation",
                  **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
        _settings("part of a head turned", "phi3", _o(0), "rotation", **_rope(partial_rotary_factor=0.5)),
        _planted("neighbours turned", "llama", _o(0), "neighbours", around=_interleaved),
        _planted("key heads in turn", "llama", _o(0), "", around=_repeated),
        _settings("eps", "llama", norm.format(0), "eps", rms_norm_eps=1e-3),
        _planted("eps in one layer", "qwen2", norm.format(1), "eps",
                 edit=_set(norm.format(1), variance_epsilon=1e-3)),
        _planted("eps of the norm of heads", "qwen3", "model.layers.0.self_attn.q_norm", "eps",
                 edit=_set("model.layers.0.self_attn.q_norm", variance_epsilon=1e-2)),
        _settings("window one too small", "mistral", _o(0), "window of 7", sliding_window=7),
        _settings("window one too large", "mistral", _o(0), "window of 9", sliding_window=9),
        _settings("no window", "mistral", _o(0), "no window", sliding_window=None),
        _settings("window where none belongs", "phi3", _o(0), "window of 6", sliding_window=6),
        _planted("scale of scores", "llama", _o(0), "scores times 1",
                 edit=_set("model.layers.0.self_attn", scaling=1.0)),
        _planted("scale of scores in one layer", "qwen3", _o(1), "scores times 0.0625",
                 edit=_set("model.layers.1.self_attn", scaling=1 / 16)),
        _planted("another scale of scores", "qwen2", _o(1), "scores times 0.3",
                 edit=_set("model.layers.1.self_attn", scaling=0.3)),
        _planted("KV cache in float8_e4m3fn", "llama", _o(0), "float8_e4m3fn",
                 around=_cached(lambda x: x.to(fp8).to(x.dtype))),
        _planted("KV cache in float8_e5m2", "qwen3", _o(0), "float8_e5m2",
                 around=_cached(lambda x: x.to(torch.float8_e5m2).to(x.dtype))),
        _planted("KV cache in bfloat16", "mistral", _o(0), "bfloat16",
                 around=_cached(lambda x: x.to(torch.bfloat16).to(x.dtype))),
        _planted("padding that is seen", "llama", _o(0), "padding",
                 run=padded(own, left=True, masked=False, use_cache=False)),
        _planted("packing that is not cut", "llama", _o(0), "other sequences",
                 run=packed(own, use_cache=True)),
        _planted("packing that is not cut, qwen3", "qwen3", _o(0), "other sequences",
                 run=packed(own, use_cache=True)),
        _planted("positions of decoding off by one", "llama", _o(0), "position",
                 run=served_each(own, 4, 0, 1)),
        _planted("learned positions off by one", "gpt2", ("transformer.wpe", "transformer.h.0.ln_1"), "",
                 run=lambda p: [p(input_ids=torch.tensor([each]),
                                  position_ids=torch.arange(1, len(each) + 1)[None]) for each in own]),
        _planted("token shift", "llama", "model.embed_tokens", "later",
                 run=alone([[*each[1:], 3] for each in own])),
        _planted("temperature", "llama", ("the whole model", "lm_head"), "times",
                 edit=_finished(lambda x: x / 0.7)),
        RolloutCase("dtype of log-softmax", "llama", Side(edit=_finished(lambda x: x.log_softmax(-1))),
                    Side(run=_SERVED, edit=_finished(lambda x: x.bfloat16().log_softmax(-1).float())),
                    ("the whole model",), "bfloat16"),
        _planted("logits in bfloat16", "qwen2", ("the whole model", "lm_head"), "bfloat16",
                 edit=_finished(lambda x: x.bfloat16().float())),
        _planted("no final norm", "llama", ("lm_head", "model"), "norm", edit=_without("model.norm")),
        _planted("no norm of heads", "qwen3", _o(0), "", edit=_without("model.layers.0.self_attn.q_norm")),
        _planted("a residual that is doubled", "llama", after.format(1), "2 times", around=_doubled),
        _planted("a layer that is left out", "qwen2", norm.format(2), "", edit=_skipped),
        _planted("another activation", "llama", "model.layers.0.mlp.down_proj", "gelu",
                 settings={"hidden_act": "gelu"}),
        _planted("GELU not by tanh", "gemma", "model.layers.0.mlp.down_proj", "gelu",
                 edit=_set("model.layers.0.mlp", act_fn=torch.nn.GELU())),
        RolloutCase("adapter not merged", "llama", Side(edit=_adapted(q)), _AS_SERVED, (_o(1),), "lora_B"),
        RolloutCase("adapter merged with another scale", "llama", Side(edit=_adapted(q)),
                    Side(edit=_adapted(q, 1.0, merge=True), run=_SERVED), (q,), "lora_B"),
        RolloutCase("stale layer", "llama", Side(update=_updated),
                    Side(edit=lambda p: p, update=lambda p: _updated(p, "layers.1."), run=_SERVED),
                    weights="is stale"),
        RolloutCase("embedding not tied", "llama", Side({"tie_word_embeddings": True}),
                    _AS_SERVED, ("lm_head",), "weights"),
        RolloutCase("weights of one layer", "llama", Side(),
                    Side(edit=_parameter(f"{down}.weight", lambda x: x * 1.1), run=_SERVED),
                    weights="1.1 times"),
        RolloutCase("keys and queries exchanged", "phi3", Side(),
                    Side(edit=_parameter("model.layers.1.self_attn.qkv_proj.weight",
                                         lambda x: torch.cat([x[32:64], x[:32], x[64:]])), run=_SERVED),
                    weights="misplaced"),
        _planted("dtype of a router", "qwen3_moe", router, "bfloat16", around=_router(torch.bfloat16)),
        _settings("weights of experts not normalised", "qwen3_moe", router + ".output.1", "softmax",
                  norm_topk_prob=False),
        _settings("another number of experts", "qwen3_moe", router + ".output.1", "top 4",
                  num_experts_per_tok=4),
        _settings("soft cap of scores", "gemma2", _o(0), "", attn_logit_softcapping=None),
        _settings("soft cap of logits", "gemma2", "the whole model", "", final_logit_softcapping=None),
        _settings("parallel residual", "gpt_neox", "gpt_neox.layers.0.post_attention_layernorm", "",
                  use_parallel_residual=False),
    ]  # fmt: skip


def main() -> None:
    """Run the cases that the command line names, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m proving.rollouts")
    parser.add_argument("only", nargs="*", default=["*"], metavar="NAME", help="patterns of names")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the dumps there")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="rollouts-") as directory:
        for case in (each for each in _cases() if any(fnmatchcase(each.name, one) for one in arguments.only)):
            root = (arguments.keep or Path(directory)) / case.name.replace(" ", "-")
            a, b = record(case.trainer, case.kind, root / "a"), record(case.rollout, case.kind, root / "b")
            begun = time.perf_counter()
            answer = ingest.compare_tokens(a, b)
            verdict = case.verdict(answer)
            counts["planted" if case.is_planted else "harmless", verdict] += 1
            said = answer.divergence.text if answer.divergence else "; ".join(answer.weights)
            print(f"{verdict:7} {case.name}, {case.kind} ({time.perf_counter() - begun:.1f} s): {said}"[:400])
    for (kind, verdict), count in sorted(counts.items()):
        print(f"{count} {kind} {verdict}")


if __name__ == "__main__":
    main()
