"""Programs of a trainer and of the engine that samples for it: the same weights, named and cut otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import torch

import ingest

Weights = dict[str, torch.Tensor]
LAYERS, HIDDEN, HEADS, KV, INNER, EXPERTS, VOCABULARY = 3, 48, 64, 32, 40, 4, 96


def moe_weights(seed: int = 0) -> Weights:
    """Return the weights of a model with experts, under the names of Hugging Face's Qwen3-MoE."""
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random) * 0.02

    weights = {"model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, rows in (("q", HEADS), ("k", KV), ("v", KV)):
            weights[f"{at}.self_attn.{name}_proj.weight"] = drawn(rows, HIDDEN)
            weights[f"{at}.self_attn.{name}_proj.bias"] = drawn(rows)
        weights[f"{at}.self_attn.o_proj.weight"] = drawn(HIDDEN, HEADS)
        weights[f"{at}.self_attn.r_proj.weight"] = drawn(HIDDEN, HIDDEN)
        weights[f"{at}.mlp.gate.weight"] = drawn(EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            for name, shape in (
                ("gate", (INNER, HIDDEN)),
                ("up", (INNER, HIDDEN)),
                ("down", (HIDDEN, INNER)),
            ):
                weights[f"{at}.mlp.experts.{expert}.{name}_proj.weight"] = drawn(*shape)
        weights[f"{at}.input_layernorm.weight"] = torch.ones(HIDDEN)
        weights[f"{at}.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    return weights | {"model.norm.weight": torch.ones(HIDDEN), "lm_head.weight": drawn(VOCABULARY, HIDDEN)}


def engine_weights(trainer: Mapping[str, torch.Tensor], *, rank: int = 0, ranks: int = 1) -> Weights:
    """Return what a rank of vLLM holds of these weights: q, k and v fused, experts stacked, in bfloat16."""

    def part(name: str, axis: int = 0) -> torch.Tensor:
        return trainer[name].chunk(ranks, axis)[rank]

    held = {name: part(f"{name}", 0) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    held["model.norm.weight"] = trainer["model.norm.weight"]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for kind in ("weight", "bias"):
            fused = [part(f"{at}.self_attn.{name}_proj.{kind}") for name in "qkv"]
            held[f"{at}.self_attn.qkv_proj.{kind}"] = torch.cat(fused)
        held[f"{at}.self_attn.o_proj.weight"] = part(f"{at}.self_attn.o_proj.weight", 1)
        held[f"{at}.self_attn.r_proj.weight"] = trainer[f"{at}.self_attn.r_proj.weight"]
        held[f"{at}.mlp.gate.weight"] = trainer[f"{at}.mlp.gate.weight"]
        experts = [f"{at}.mlp.experts.{expert}" for expert in range(EXPERTS)]
        gates_up = [
            torch.cat([part(f"{each}.{name}_proj.weight") for name in ("gate", "up")]) for each in experts
        ]
        held[f"{at}.mlp.experts.w13_weight"] = torch.stack(gates_up)
        held[f"{at}.mlp.experts.w2_weight"] = torch.stack(
            [part(f"{each}.down_proj.weight", 1) for each in experts]
        )
        for norm in ("input_layernorm", "post_attention_layernorm"):
            held[f"{at}.{norm}.weight"] = trainer[f"{at}.{norm}.weight"]
    return {name: each.to(torch.bfloat16) for name, each in held.items()}


def apart(engine: Mapping[str, torch.Tensor]) -> Weights:
    """Return weights of an engine as another one holds them: q, k and v apart."""
    held: Weights = {}
    for name, values in engine.items():
        if "qkv_proj" in name:
            parts = values.split([HEADS, KV, KV])
            held |= {name.replace("qkv", part): each for part, each in zip("qkv", parts, strict=True)}
        else:
            held[name] = values
    return held


def updated(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Return weights after a small update, which leaves norms as they were."""
    random = torch.Generator().manual_seed(1)
    return {
        name: each if "norm" in name else each + 1e-4 * torch.randn(each.shape, generator=random)
        for name, each in weights.items()
    }


def record_weights(root: Path, step: int, *by_rank: Mapping[str, torch.Tensor]) -> Path:
    """Record weights as the parameters of a program, on one rank or several."""
    for rank, weights in enumerate(by_rank):
        with patch.dict(os.environ, {"RANK": str(rank), "WORLD_SIZE": str(len(by_rank))}):
            program = _module(weights)
            with ingest.record(
                program, root, what="tensors", of=("parameters",), first_step=step, steps=[step]
            ):
                program(torch.zeros(1))
    return root


class _Program(torch.nn.Module):  # type: ignore[misc]
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return what it was given: its parameters are what matters."""
        return values


def _module(weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    root = _Program()
    for name, values in weights.items():
        *path, last = name.split(".")
        module: torch.nn.Module = root
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, torch.nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(last, torch.nn.Parameter(values.clone().contiguous(), requires_grad=False))
    return root
