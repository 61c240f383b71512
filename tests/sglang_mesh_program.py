"""Runs a small transformer on meshes of emulated ranks, and dumps what each has with SGLang's dumper.

Run by `tests/acceptance/test_hidden_meshes.py` with a directory and the names of runs, each perhaps with a
mistake: `cp2-tp2+no-reduction`. It writes `told/RUN`, with annotations (`dims`) and the places of ranks;
`hidden/RUN`, with neither; of one run `placed/RUN`, with places alone; and, of runs without a mistake,
`RUN.npz`, with what SGLang's comparator makes of the annotated files.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204

import importlib
import importlib.metadata
import re
import sys
from collections import defaultdict
from dataclasses import make_dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch.nn import functional

BATCH, LENGTH, WIDTH, LAYERS = 2, 16, 32, 2
HEADS, KEY_HEADS, HEAD, WIDE, EXPERTS, VOCABULARY = 4, 2, 8, 48, 4, 52
#: Of packed sequences, as `t` has them.
LENGTHS = (8, 24, 16)

STUBS = {
    "sglang.srt.managers": (),
    "sglang.srt.managers.io_struct": ("sock_recv", "sock_send", "wrap_as_pickle"),
    "sglang.srt.runtime_context": ("get_parallel", "get_server_args", "get_serving"),
    "sglang.srt.utils": ("get_device",),
    "polars": ("DataFrame",),
}


def of_sglang(module):
    """Import a module of SGLang's debugging tools. What they import and do not use here is a stub."""
    root = Path(importlib.metadata.distribution("sglang").locate_file("sglang"))
    for name in ("sglang", "sglang.srt", "sglang.srt.debug_utils"):
        package = sys.modules.setdefault(name, ModuleType(name))
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    for name, names in STUBS.items():
        if name not in sys.modules:
            stub = sys.modules[name] = ModuleType(name)
            stub.__path__ = []
            vars(stub).update({name: make_dataclass(name, []) for name in names})
    return importlib.import_module(f"sglang.srt.debug_utils.{module}")


class Mesh:
    """Ranks by their places, outer to inner axis; `self.ranks` gives the place of each."""

    def __init__(self, **axes):
        self.axes = axes
        self.ranks = [
            dict(zip(axes, map(int, place), strict=True)) for place in np.ndindex(tuple(axes.values()))
        ]

    def size(self, axis):
        return self.axes.get(axis, 1)

    def at(self, rank, axis):
        return self.ranks[rank].get(axis, 0)

    def group(self, rank, axis):
        """Return the ranks along an axis, in order."""
        if axis not in self.axes:
            return [rank]
        others = {name: place for name, place in self.ranks[rank].items() if name != axis}
        return [number for number, place in enumerate(self.ranks) if others.items() <= place.items()]

    def total(self, values, *axes):
        """All-reduce."""
        for axis in axes:
            values = [sum(values[other] for other in self.group(rank, axis)) for rank in range(len(values))]
        return values

    def gathered(self, values, axis, dim):
        return [
            torch.cat([values[other] for other in self.group(rank, axis)], dim) for rank in range(len(values))
        ]


def shard(value, mesh, rank, axis, dim, *, blocks=(1,)):
    """Return the part of a rank, of each block (`blocks` gives their shares)."""
    if axis not in mesh.axes:
        return value
    parts = value.split([value.shape[dim] * share // sum(blocks) for share in blocks], dim)
    return torch.cat([part.chunk(mesh.size(axis), dim)[mesh.at(rank, axis)] for part in parts], dim)


def positions(mesh, rank, *, zigzag, lengths):
    """Return the positions of the tokens of a rank: of each sequence, chunks r and 2n - 1 - r, or chunk r."""
    count, place = mesh.size("cp"), mesh.at(rank, "cp")
    chosen, begin = [], 0
    for length in lengths:
        own = torch.arange(begin, begin + length)
        if zigzag:
            chunks = own.chunk(2 * count)
            chosen += [chunks[place], chunks[2 * count - 1 - place]] if count > 1 else [own]
        else:
            chosen.append(own.chunk(count)[place])
        begin += length
    return torch.cat(chosen)


def parameters():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    made = {"embed": normal(VOCABULARY, WIDTH) * 4, "head": normal(VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        made |= {
            f"{layer}.norm": 1 + normal(WIDTH),
            f"{layer}.qkv": normal((HEADS + 2 * KEY_HEADS) * HEAD, WIDTH),
            f"{layer}.out": normal(WIDTH, HEADS * HEAD),
            f"{layer}.norm2": 1 + normal(WIDTH),
        }
        made |= (
            {
                f"{layer}.router": normal(EXPERTS, WIDTH),
                f"{layer}.experts_up": normal(EXPERTS, WIDE, WIDTH),
                f"{layer}.experts_down": normal(EXPERTS, WIDTH, WIDE),
            }
            if layer % 2
            else {f"{layer}.gate_up": normal(2 * WIDE, WIDTH), f"{layer}.down": normal(WIDTH, WIDE)}
        )
    return made


#: The axes of the mesh that cut each parameter: which axis of it, and its blocks.
CUT = {
    "embed": [("tp", 0)],
    "head": [("tp", 0)],
    "qkv": [("tp", 0, (HEADS, KEY_HEADS, KEY_HEADS))],
    "out": [("tp", 1)],
    "gate_up": [("tp", 0, (1, 1))],
    "down": [("tp", 1)],
    "experts_up": [("moe_ep", 0), ("moe_tp", 1)],
    "experts_down": [("moe_ep", 0), ("moe_tp", 2)],
}


class Run:
    """One run: what each rank computes, and what is dumped of it, with its annotation."""

    def __init__(self, mesh, *, style="b s", zigzag=True, sp=False, plant=""):
        self.mesh, self.style, self.zigzag, self.sp, self.plant = mesh, style, zigzag, sp, plant
        self.ranks = range(len(mesh.ranks))
        self.dumped = []
        cp = "cp:zigzag" if zigzag else "cp"
        own = [cp] * ("cp" in mesh.axes)
        with_sp = [*own, *["sp"] * sp]
        tokens = {"b s": "b s%s", "s b": "s%s b", "t": "t%s 1"}[style]
        self.tokens = tokens % (f"[{','.join(own)}]" if own else "")
        self.sp_tokens = tokens % (f"[{','.join(with_sp)}]" if with_sp else "")
        self.dim = 1 if style == "b s" else 0
        self.lengths = LENGTHS if style == "t" else (LENGTH,)

    def dump(self, name, values, dims):
        """Note what ranks have. Along axes of the mesh that `dims` does not name, all have the same."""
        named = re.findall(r"[\[,](\w+)", dims)
        same = [axis for axis in self.mesh.axes if axis not in (*named, "dp", *["tp"] * ("sp" in named))]
        remarks = [f"{axis}:replicated" for axis in same]
        text = " ".join([dims, "#", *remarks]) if remarks else dims
        self.dumped.append((name, [value.detach().clone() for value in values], text))

    def each(self, function, *values):
        return [function(rank, *(value[rank] for value in values)) for rank in self.ranks]

    def forward(self):
        mesh, ranks = self.mesh, self.ranks
        whole = parameters()
        self.weights = {
            name: self.each(
                lambda rank, name=name, value=value: self.part(name, value, rank).requires_grad_()
            )
            for name, value in whole.items()
        }
        total = sum(self.lengths)
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(
            0, VOCABULARY, (1 if self.style == "t" else BATCH, total + 1), generator=generator
        )
        ids, targets = ids[:, :-1], ids[:, 1:]
        zigzag = self.zigzag and self.plant != "contiguous"
        self.places = [positions(mesh, rank, zigzag=zigzag, lengths=self.lengths) for rank in ranks]
        self.believed = [positions(mesh, rank, zigzag=self.zigzag, lengths=self.lengths) for rank in ranks]
        sequence = torch.cat([torch.full((length,), number) for number, length in enumerate(self.lengths)])
        own_ids, own_targets = (
            self.each(self.tokens_of, [ids] * len(ranks)),
            self.each(self.tokens_of, [targets] * len(ranks)),
        )
        self.dump("input_ids", own_ids, self.tokens)
        hidden = self.each(self.embed, own_ids)
        self.dump(
            "embed_partial",
            hidden,
            f"{self.tokens} h[tp:partial]" if mesh.size("tp") > 1 else f"{self.tokens} h",
        )
        hidden = self.reduced(hidden)
        self.dump("embed", hidden, f"{self.sp_tokens} h")
        for layer in range(LAYERS):
            hidden = self.attention(layer, hidden, sequence)
            hidden = self.moe(layer, hidden) if layer % 2 else self.mlp(layer, hidden)
        hidden = self.whole(hidden)
        logits = self.each(lambda rank, value: value @ self.weights["head"][rank].T, hidden)
        self.dump("logits", logits, f"{self.tokens} v[tp]")
        logits = mesh.gathered(logits, "tp", -1)
        losses = self.each(
            lambda _, value, target: functional.cross_entropy(
                value.flatten(0, 1), target.flatten(), reduction="none"
            ).view(target.shape),
            logits,
            own_targets,
        )
        self.dump("loss_per_token", losses, self.tokens)
        # The ranks of a tensor parallel group have one loss together; those of experts have it each.
        count = total * mesh.size("moe_ep") * mesh.size("moe_tp")
        sum(losses[rank].sum() for rank in ranks if not mesh.at(rank, "tp")).div(count).backward()
        self.gradients()
        return self

    def tokens_of(self, rank, tokens):
        own = shard(tokens, self.mesh, rank, "dp", 0)[:, self.places[rank]]
        return own if self.style == "b s" else own.T.contiguous()

    def part(self, name, value, rank):
        for axis, dim, *blocks in CUT.get(name.partition(".")[2] or name, ()):
            place = rank
            if (self.plant, name) == ("same shard", "0.out"):
                place = self.mesh.group(rank, "tp")[0]
            elif (self.plant, name) == ("swapped shards", "0.down"):
                place = self.mesh.group(rank, "tp")[1 - self.mesh.at(rank, "tp")]
            value = shard(value, self.mesh, place, axis, dim, blocks=blocks[0] if blocks else (1,))
        return value.clone().contiguous()

    def embed(self, rank, ids):
        weight = self.weights["embed"][rank]
        local = ids - self.mesh.at(rank, "tp") * len(weight)
        inside = (local >= 0) & (local < len(weight))
        return functional.embedding(local.clamp(0, len(weight) - 1), weight) * inside[..., None]

    def reduced(self, partial, *axes):
        """Add up over tensor parallelism, and cut the sequence with sequence parallelism."""
        total = self.mesh.total(partial, *(axes or ("tp",)))
        if not self.sp:
            return total
        return self.each(
            lambda rank, value: value.chunk(self.mesh.size("tp"), self.dim)[self.mesh.at(rank, "tp")], total
        )

    def whole(self, hidden):
        return self.mesh.gathered(hidden, "tp", self.dim) if self.sp else hidden

    def norm(self, layer, name, hidden):
        normed = self.each(
            lambda rank, value: functional.rms_norm(value, (WIDTH,), self.weights[f"{layer}.{name}"][rank]),
            hidden,
        )
        self.dump(f"layers.{layer}.{name}", normed, f"{self.sp_tokens} h")
        return self.whole(normed)

    def attention(self, layer, hidden, sequence):
        mesh = self.mesh
        normed = self.norm(layer, "norm", hidden)
        qkv = self.each(lambda rank, value: value @ self.weights[f"{layer}.qkv"][rank].T, normed)
        self.dump(f"layers.{layer}.qkv", qkv, f"{self.tokens} (heads*d)[tp]")
        own = [count // mesh.size("tp") for count in (HEADS, KEY_HEADS, KEY_HEADS)]
        queries, keys, values = zip(
            *(value.unflatten(-1, (-1, HEAD)).split(own, -2) for value in qkv), strict=True
        )
        for name, parts in {"q": queries, "k": keys, "v": values}.items():
            self.dump(f"layers.{layer}.{name}", parts, f"{self.tokens} n[tp] d")
        scores, contexts = [], []
        for rank in self.ranks:
            group = mesh.group(rank, "cp")
            place = torch.cat([self.believed[other] for other in group])
            order = place.argsort()
            key, value = (
                torch.cat([part[other] for other in group], self.dim)
                .index_select(self.dim, order)
                .repeat_interleave(HEADS // KEY_HEADS, -2)
                for part in (keys, values)
            )
            axes = "bsnd,btnd->bnst" if self.style == "b s" else "sbnd,tbnd->bnst"
            score = torch.einsum(axes, queries[rank], key) / HEAD**0.5
            own, other = self.believed[rank][:, None], place[order][None]
            score = score.masked_fill((own < other) | (sequence[own] != sequence[other]), -1e4)
            scores.append(score)
            axes = "bnst,btnd->bsnd" if self.style == "b s" else "bnst,tbnd->sbnd"
            contexts.append(torch.einsum(axes, score.softmax(-1), value))
        if self.style != "t":
            self.dump(f"layers.{layer}.scores", scores, " ".join(["b n[tp]", *self.tokens.split("b"), "t"]))
        if (self.plant, layer) == ("late chunk first", 1):
            contexts = [
                torch.cat(value.chunk(2, self.dim)[::-1], self.dim) if mesh.at(rank, "cp") else value
                for rank, value in enumerate(contexts)
            ]
        self.dump(f"layers.{layer}.context", contexts, f"{self.tokens} n[tp] d")
        partial = self.each(
            lambda rank, value: value.flatten(-2) @ self.weights[f"{layer}.out"][rank].T, contexts
        )
        self.dump(f"layers.{layer}.out_partial", partial, f"{self.tokens} h[tp:partial]")
        out = partial if (self.plant, layer) == ("no reduction", 1) else self.reduced(partial)
        self.dump(f"layers.{layer}.out", out, f"{self.sp_tokens} h")
        hidden = [own + value for own, value in zip(hidden, out, strict=True)]
        self.dump(f"layers.{layer}.residual", hidden, f"{self.sp_tokens} h")
        return hidden

    def mlp(self, layer, hidden):
        normed = self.norm(layer, "norm2", hidden)
        both = self.each(lambda rank, value: value @ self.weights[f"{layer}.gate_up"][rank].T, normed)
        self.dump(f"layers.{layer}.gate_up", both, f"{self.tokens} f[tp]")
        act = [functional.silu(value.chunk(2, -1)[0]) * value.chunk(2, -1)[1] for value in both]
        self.dump(f"layers.{layer}.act", act, f"{self.tokens} f[tp]")
        partial = self.each(lambda rank, value: value @ self.weights[f"{layer}.down"][rank].T, act)
        self.dump(f"layers.{layer}.down_partial", partial, f"{self.tokens} h[tp:partial]")
        out = self.reduced(partial)
        self.dump(f"layers.{layer}.down", out, f"{self.sp_tokens} h")
        return [own + value for own, value in zip(hidden, out, strict=True)]

    def moe(self, layer, hidden):
        """Route each token to two experts; ranks hold experts, and parts of each."""
        normed = self.norm(layer, "norm2", hidden)
        router = self.each(lambda rank, value: value @ self.weights[f"{layer}.router"][rank].T, normed)
        self.dump(f"layers.{layer}.router", router, f"{self.tokens} e")
        chosen = [value.softmax(-1).topk(2, -1) for value in router]
        self.dump(f"layers.{layer}.topk", [indices for _, indices in chosen], f"{self.tokens} k")
        gates = [
            torch.zeros_like(value).scatter(-1, indices, top)
            for value, (top, indices) in zip(router, chosen, strict=True)
        ]
        own, partial = [], []
        for rank in self.ranks:
            up, down = self.weights[f"{layer}.experts_up"][rank], self.weights[f"{layer}.experts_down"][rank]
            act = functional.silu(torch.einsum("xyh,efh->exyf", normed[rank], up))
            own.append(act)
            gate = shard(gates[rank], self.mesh, rank, "moe_ep", -1)
            partial.append(torch.einsum("exyf,ehf,xye->xyh", act, down, gate))
        self.dump(f"layers.{layer}.expert_act", own, f"e[moe_ep] {self.tokens} f[moe_tp]")
        is_cut = any(axis in self.mesh.axes for axis in ("moe_ep", "moe_tp"))
        axes = ",".join(f"{axis}:partial" for axis in ("moe_ep", "moe_tp") if axis in self.mesh.axes)
        self.dump(
            f"layers.{layer}.moe_partial", partial, f"{self.tokens} h[{axes}]" if axes else f"{self.tokens} h"
        )
        total = self.mesh.total(partial, "moe_ep", "moe_tp") if is_cut else partial
        out = self.each(
            lambda rank, value: (
                value.chunk(self.mesh.size("tp"), self.dim)[self.mesh.at(rank, "tp")] if self.sp else value
            ),
            total,
        )
        self.dump(f"layers.{layer}.moe", out, f"{self.sp_tokens} h")
        return [value + other for value, other in zip(hidden, out, strict=True)]

    def gradients(self):
        """Dump parameters, their gradients, and these added up over the ranks that hold the same."""
        names = {"experts_up": "e f h", "experts_down": "e h f", "norm": "h", "norm2": "h"}
        for name, values in self.weights.items():
            kind = name.partition(".")[2] or name
            words = names.get(kind, "o i").split()
            cut = {axis: dim for axis, dim, *_ in CUT.get(kind, ()) if axis in self.mesh.axes}
            for axis, dim in cut.items():
                words[dim] = f"{words[dim]}[{axis}]"
            self.dump(f"param.{name}", values, " ".join(words))
            sums = [axis for axis in self.mesh.axes if axis not in cut]
            if name == "head" and self.mesh.size("moe_ep") > 1:
                continue  # ranks of experts have the same share of it, which is not cut
            own = [torch.zeros_like(value) if value.grad is None else value.grad for value in values]
            if sums:
                last = words[-1].rstrip("]")
                text = ",".join(f"{axis}:partial" for axis in sums)
                words[-1] = f"{last},{text}]" if "[" in last else f"{last}[{text}]"
                self.dump(f"grad_partial.{name}", own, " ".join(words))
                own = self.mesh.total(own, *sums)
                words[-1] = words[-1].replace(f",{text}", "").replace(f"[{text}]", "")
            self.dump(f"grad.{name}", own, " ".join(words))


class Plugin:
    """Tells SGLang's dumper the place of a rank, as that of Megatron does."""

    name = "megatron"

    def __init__(self, mesh, rank, *, sp):
        self.info = {}
        for axis in mesh.axes:
            self.info |= {f"{axis}_rank": mesh.at(rank, axis), f"{axis}_size": mesh.size(axis)}
        if sp:
            self.info |= {"sp_rank": mesh.at(rank, "tp"), "sp_size": mesh.size("tp")}

    def collect_parallel_info(self):
        return self.info

    def __getattr__(self, name):
        if name == "core_fields":
            return frozenset
        if name == "detect_recompute_status":
            return lambda: sys.modules["sglang.srt.debug_utils.dumper"]._RecomputeStatus.DISABLED
        return lambda *_, **__: None


def write(run, directory, *, dims, places):
    """Write the files of all ranks with SGLang's dumper."""
    module = of_sglang("dumper")
    module._get_world_size = lambda: len(run.mesh.ranks)
    for rank in run.ranks:
        module._get_rank = lambda rank=rank: rank
        module._plugins = [Plugin(run.mesh, rank, sp=run.sp)] if places else []
        config = module.DumperConfig(
            enable=True, dir=str(directory.parent), exp_name=directory.name, enable_output_console=False
        )
        dumper = module._Dumper(config=config)
        for name, values, text in run.dumped:
            dumper.dump(name, values[rank], dims=text if dims else None)


def unsharded(directory, lengths):
    """Return by name what SGLang's comparator makes of annotated files; `lengths` of packed sequences."""
    planner = of_sglang("comparator.aligner.entrypoint.planner")
    executor = of_sglang("comparator.aligner.entrypoint.executor")
    dims_spec = of_sglang("comparator.dims_spec")
    loaded = defaultdict(dict)
    for path in directory.iterdir():
        file = torch.load(path, weights_only=False)
        loaded[file["meta"]["name"]][file["meta"]["rank"]] = file
    made = {}
    for name, by_rank in loaded.items():
        files = [by_rank[rank] for rank in sorted(by_rank)]
        plans = planner.compute_per_step_sub_plans(
            [file["meta"] for file in files], thd_global_seq_lens=lengths
        )
        tensors = [
            dims_spec.apply_dim_names(file["value"], dims_spec.resolve_dim_names(file["meta"]["dims"]))
            for file in files
        ]
        made[name] = executor.execute_sub_plans(tensors=tensors, plans=plans).tensor.numpy()
    return made


#: The mesh of each run, and what else is told about it.
RUNS = {
    "one": ({}, {}),
    "one-sb": ({}, {"style": "s b"}),
    "one-t": ({}, {"style": "t"}),
    "cp2-tp2": ({"cp": 2, "tp": 2}, {}),
    "tp2-cp2": ({"tp": 2, "cp": 2}, {}),
    "natural": ({"cp": 2, "tp": 2}, {"zigzag": False}),
    "sp-sb": ({"cp": 2, "tp": 2}, {"style": "s b", "sp": True}),
    "sp-t": ({"cp": 2, "tp": 2}, {"style": "t", "sp": True}),
    "cp4": ({"cp": 4}, {}),
    "ep2-etp2": ({"moe_ep": 2, "moe_tp": 2}, {}),
    "cp2-ep2": ({"cp": 2, "moe_ep": 2}, {}),
    "dp2-tp2": ({"dp": 2, "tp": 2}, {}),
}


def main(directory, names):
    torch.set_num_threads(1)
    for name in names:
        key, _, plant = name.partition("+")
        axes, told = RUNS[key]
        run = Run(Mesh(**axes), **told, plant=plant.replace("-", " ")).forward()
        for kind in ("told", "hidden", *["placed"] * (name == "cp2-tp2")):
            write(run, directory / kind / name, dims=kind == "told", places=kind != "hidden")
        if not plant and "dp" not in axes:
            lengths = list(run.lengths) if run.style == "t" else None
            np.savez(directory / f"{name}.npz", **unsharded(directory / "told" / name, lengths))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
