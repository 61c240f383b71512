"""A transformer cut by hand over ranks, as Megatron-LM cuts it, and the mistakes that people make in that.

Tensor, sequence, context, expert and data parallelism in one program. With one rank, it is the reference. A
mistake is made at the one place where its author would make it: in the module, or to the parameter, that
`where` names, or in all.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, ANN205, D101, D102, D401

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from proving.collectives import Added, Copied, Exchanged, Gathered, Late, arrived, gathered, own_part
from proving.megatron_faults import FAULTS


@dataclass(frozen=True, slots=True)
class Options:
    """A variant."""

    dp: int = 1
    cp: int = 1
    tp: int = 1
    sequence: bool = False
    """Sequence parallelism: between the products of tensor parallelism, ranks have parts of the sequence."""
    experts: bool = False
    """Whether the data-parallel ranks share the experts."""
    layers: int = 3
    width: int = 16
    heads: int = 4
    length: int = 8
    batch: int = 4
    vocabulary: int = 32
    microbatches: int = 1
    optimizer: str = "adamw"
    clip: float = 0.0
    moe: int = -1
    """The layer that is a mixture of experts."""
    bias: bool = True
    tied: bool = False
    head_norm: bool = False
    """RMSNorm of each head before the output projection, with one weight for all heads."""
    further: bool = False
    """Whether the token after the next is predicted, too (multi-token prediction)."""
    padded: bool = False
    """Whether the later rows of a batch have fewer targets."""
    masked: bool = False
    """Whether tokens without a target go to no expert."""
    recompute: bool = False
    late: bool = False
    """Whether the sums of row-parallel layers are awaited by whoever reads the output."""
    threads: int = 1
    where: str = ""
    """The module or parameter that the mistake is made with."""
    group: str = "dp"
    """The wrong group."""
    change: str = "element"
    """How a value changes: an element, a row, nan, or the number of a bit."""


_READ = {"q": "ln1", "k": "ln1", "v": "ln1", "up": "ln2", "head": "norm"}


class World:
    """The groups of this rank, where the run is, and what it does wrong."""

    def __init__(self, job, options):
        self.job, self.options = job, options
        self.step = 0
        if not distributed.is_initialized():
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        axes = {"dp": options.dp, "cp": options.cp, "tp": options.tp}
        self.mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        self.groups = {name: self.mesh.get_group(name) for name in axes} | {"world": distributed.group.WORLD}

    def size(self, axis):
        return distributed.get_world_size(self.groups[axis])

    def place(self, axis):
        return distributed.get_rank(self.groups[axis])

    def wrong(self, fault, at=""):
        """Whether this is done wrong here and now."""
        where = self.options.where
        if self.job.run.fault != fault or where not in ("", at):
            return False
        holds, _, last = at.rpartition(".")
        block = ".".join(at.split(".")[:2])
        reads = f"{block}.{_READ[last]}" if holds and last in _READ else _READ.get(last, holds)
        names = [at] if where else [at, "*.weight", "*.bias"]  # nothing is named: all of them
        places = [
            place.format(at=name, holds=holds or at, reads=reads)
            for place in FAULTS[fault].places
            for name in (names if place.startswith(("Gradient.{at}", "Parameter.{at}")) else [at])
        ]
        return self.job.wrong(fault, self.step, places)

    def group(self, axis, fault, at=""):
        """The group of an axis, or the one that is taken by mistake."""
        return self.groups[self.options.group if self.wrong(fault, at) else axis]


def _cut(weight, world, dim, module):
    """The own shard of a weight, and what loaders do wrong."""
    place, size = world.place("tp"), world.size("tp")
    if world.wrong("shards exchanged", module):
        place = (place + 1) % size
    if world.wrong("same shard", module):
        place = 0
    if world.wrong("interleaved shards", module):
        index = torch.arange(place, weight.shape[dim], size)
        return weight.index_select(dim, index).clone()
    if weight.ndim == 2 and world.wrong("transposed weight", module):
        weight = weight.T
    shard = weight.chunk(size, dim)[place].contiguous().clone()
    if world.wrong("rows in another order", module):
        shard = shard.flip(0)
    return shard


class Column(nn.Module):
    """A linear layer of which each rank has some outputs."""

    def __init__(self, inputs, outputs, world, *, path, bias=True):
        super().__init__()
        whole = nn.Linear(inputs, outputs, bias=bias)
        self.weight = nn.Parameter(_cut(whole.weight.detach(), world, 0, path))
        self.bias = nn.Parameter(_cut(whole.bias.detach(), world, 0, path)) if bias else None
        for parameter in self.parameters():
            parameter.cut = "tp"
        self.world, self.path = world, path

    def forward(self, x):
        if self.world.options.sequence:
            group = self.world.group("tp", "wrong group gather", self.path)
            x = Gathered.apply(x, group, 1, True)  # noqa: FBT003  (autograd takes no keywords)
            if self.world.wrong("tokens out of order", self.path):
                x = torch.cat(x.chunk(self.world.size("tp"), 1)[::-1], 1)
        else:
            x = Copied.apply(x, self.world, self.path)
        return functional.linear(x, self.weight, self.bias)


class Row(nn.Module):
    """A linear layer of which each rank has some inputs."""

    def __init__(self, inputs, outputs, world, *, path, bias=True):
        super().__init__()
        whole = nn.Linear(inputs, outputs, bias=bias)
        self.weight = nn.Parameter(_cut(whole.weight.detach(), world, 1, path))
        self.weight.cut = "tp"
        self.bias = nn.Parameter(whole.bias.detach().clone()) if bias else None
        if bias:
            self.bias.partial = "tp" if world.options.sequence else None
        self.world, self.path = world, path

    def forward(self, x):
        world, path = self.world, self.path
        partial = functional.linear(x, self.weight)
        if world.wrong("bias on each rank", path):
            return self._total(partial + self.bias)
        if world.wrong("bias lost", path) or self.bias is None:
            return self._total(partial)
        return self._total(partial) + self.bias

    def _total(self, partial):
        world, path = self.world, self.path
        group = world.group("tp", "wrong group forward", path)
        dim = 1 if world.options.sequence else None
        if world.wrong("no reduction forward", path):
            return partial if dim is None else own_part(partial, group, dim)
        if world.wrong("reduced twice forward", path):
            partial = Added.apply(partial, group, None)
        if world.options.late:
            return Late.apply(partial, group, dim, path)
        total = Added.apply(partial, group, dim)
        if world.wrong("average instead of sum", path):
            total = total / world.size("tp")
        if world.wrong("lost in transit", path):  # as if the packets of one message had not arrived
            total = torch.cat([torch.zeros_like(total[:, :2]), total[:, 2:]], 1)
        return total


class Embedding(nn.Module):
    """An embedding of which each rank has some words."""

    def __init__(self, options, world, *, path):
        super().__init__()
        whole = nn.Embedding(options.vocabulary, options.width)
        self.weight = nn.Parameter(_cut(whole.weight.detach(), world, 0, path))
        self.weight.cut = "tp"
        self.world, self.path = world, path

    def forward(self, ids):
        world = self.world
        own = ids - world.place("tp") * len(self.weight)
        inside = (own >= 0) & (own < len(self.weight))
        found = functional.embedding(own.clamp(0, len(self.weight) - 1), self.weight)
        if not world.wrong("words of others not masked", self.path):
            found = found * inside[..., None]
        return Added.apply(found, world.groups["tp"], 1 if world.options.sequence else None)


class Norm(nn.LayerNorm):
    """A layer norm, whose parameters all ranks have."""

    def __init__(self, width, world, *, path):
        super().__init__(width)
        for parameter in self.parameters():
            parameter.partial = "tp" if world.options.sequence else None
        self.world, self.path = world, path

    def forward(self, x):
        eps = 1e-6 if self.world.wrong("eps of one norm", self.path) else self.eps
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, eps)


class HeadNorm(nn.Module):
    """RMSNorm of each head, before the output projection: one weight, and heads on all ranks."""

    def __init__(self, width, world, *, path):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.weight.partial = (
            None if world.wrong("gradient of the norm of heads not added up", path) else "tp"
        )

    def forward(self, x):
        return functional.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Attention(nn.Module):
    def __init__(self, options, world, *, path):
        super().__init__()
        width = options.width
        self.q = Column(width, width, world, path=f"{path}.q", bias=options.bias)
        self.k = Column(width, width, world, path=f"{path}.k", bias=options.bias)
        self.v = Column(width, width, world, path=f"{path}.v", bias=options.bias)
        self.each = width // options.heads
        self.norm = HeadNorm(self.each, world, path=f"{path}.norm") if options.head_norm else nn.Identity()
        self.out = Row(width, width, world, path=f"{path}.out", bias=options.bias)
        self.world, self.path = world, path

    def forward(self, x):
        world = self.world
        q, k, v = (
            part.unflatten(-1, (-1, self.each)).transpose(1, 2) for part in (self.q(x), self.k(x), self.v(x))
        )
        length = q.shape[2]
        if world.size("cp") > 1:
            group = world.group("cp", "wrong group of keys", self.path)
            continues = not world.wrong("gradients of keys not added up", self.path)
            k, v = (Gathered.apply(part, group, 2, continues) for part in (k, v))
        begin = world.place("cp") * length
        own = torch.arange(begin, begin + length)
        mask = own[:, None] >= torch.arange(k.shape[2])[None]
        if world.wrong("mask begins anew on each rank", self.path):
            mask = torch.arange(length)[:, None] >= torch.arange(k.shape[2])[None]
        scale = self.each**0.5
        if world.wrong("scores not scaled", self.path):
            scale = 1.0
        scores = (q @ k.transpose(-1, -2) / scale).masked_fill(~mask, -torch.inf)
        return self.out(self.norm(scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, options, world, *, path):
        super().__init__()
        self.up = Column(options.width, 2 * options.width, world, path=f"{path}.up", bias=options.bias)
        self.act = nn.GELU("tanh" if world.wrong("other gelu", path) else "none")
        self.down = Row(2 * options.width, options.width, world, path=f"{path}.down", bias=options.bias)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.down(functional.silu(self.up(x)))


class Experts(nn.Module):
    """Four experts, two for each token; with expert parallelism, tokens go to the ranks of theirs."""

    COUNT = 4

    def __init__(self, options, world, *, path):
        super().__init__()
        self.router = nn.Linear(options.width, self.COUNT, bias=False)
        self.router.weight.partial = "tp" if world.options.sequence else None
        if world.wrong("gradient of the router not added up", path):
            self.router.weight.partial, self.router.weight.alone = None, True
        experts = [Expert(options.width) for _ in range(self.COUNT)]
        self.own = range(self.COUNT)
        if world.options.experts:
            each = self.COUNT // world.size("dp")
            self.own = range(world.place("dp") * each, (world.place("dp") + 1) * each)
        loaded = {number: experts[number] for number in self.own}
        if world.wrong("experts exchanged", path):
            loaded = dict(zip(loaded, reversed(loaded.values()), strict=True))
        self.experts = nn.ModuleDict({str(number): expert for number, expert in loaded.items()})
        for parameter in self.experts.parameters():
            if world.options.experts:
                parameter.cut = "dp"
            parameter.partial = "tp" if world.options.sequence else None
        self.world, self.path = world, path

    def forward(self, x):
        tokens = x.flatten(0, 1)
        gates, chosen = self.router(tokens).softmax(-1).topk(2, -1)
        if self.world.wrong("gates add up to one", self.path):
            gates = gates / gates.sum(-1, keepdim=True)
        if self.world.options.masked:
            gates = gates * self._counts().flatten()[:, None]
        order = chosen.flatten().argsort(stable=True)
        rows = tokens[order // 2]
        counts = chosen.flatten().bincount(minlength=self.COUNT)
        results = (
            self._expert_parallel(rows, counts) if self.world.options.experts else self._all(rows, counts)
        )
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        if self.world.wrong("tokens come back in another order", self.path):
            back = torch.arange(len(order))
        picked = results[back].unflatten(0, (-1, 2))
        return (picked * gates[..., None]).sum(1).view_as(x)

    def _counts(self):
        """Return which of the own tokens are not padding."""
        if not self.world.options.sequence:
            return self.world.counts
        group = self.world.group("tp", "padding mask cut over a wrong group", self.path)
        return own_part(self.world.counts, group, 1)

    def _all(self, rows, counts):
        parts = rows.split(counts.tolist())
        return torch.cat([self.experts[str(number)](part) for number, part in enumerate(parts)])

    def _expert_parallel(self, rows, counts):
        world = self.world
        group, size = world.groups["dp"], world.size("dp")
        table = gathered(counts[None], group, 0)  # of each rank, the rows for each expert
        own = table[:, self.own.start : self.own.stop]
        sent = counts.view(size, -1).sum(1).tolist()
        received = own.sum(1).tolist()
        here = Exchanged.apply(rows, sent, received, group)
        pieces = dict(
            zip(
                [(rank, number) for rank in range(size) for number in self.own],
                here.split(own.flatten().tolist()),
                strict=True,
            )
        )
        done = {}
        for number in self.own:
            together = torch.cat([pieces[rank, number] for rank in range(size)])
            results = self.experts[str(number)](together).split(
                [len(pieces[rank, number]) for rank in range(size)]
            )
            done |= {(rank, number): part for rank, part in enumerate(results)}
        return Exchanged.apply(torch.cat([done[key] for key in pieces]), received, sent, group)


class Block(nn.Module):
    def __init__(self, options, world, number):
        super().__init__()
        path = f"blocks.{number}"
        self.ln1 = Norm(options.width, world, path=f"{path}.ln1")
        self.attention = Attention(options, world, path=f"{path}.attention")
        self.ln2 = Norm(options.width, world, path=f"{path}.ln2")
        kind = Experts if number == options.moe else Mlp
        self.mlp = kind(options, world, path=f"{path}.mlp")
        self.world, self.path = world, path

    def forward(self, x):
        x = x + arrived(f"{self.path}.attention.out", self.attention(self.ln1(x)))
        x = x + arrived(f"{self.path}.mlp.down", self.mlp(self.ln2(x)))
        return flipped(x, self.world, "activation changes", self.path)


class Recomputed(torch.autograd.Function):
    """Runs a block again in the backward pass. Ranks of tensor parallelism each keep a part of its input."""

    @staticmethod
    def forward(ctx, x, block):
        world = ctx.world = block.world
        ctx.block = block
        ctx.save_for_backward(own_part(x.detach(), world.groups["tp"], -1).contiguous())
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        world = ctx.world
        group = world.group("tp", "kept parts gathered from a wrong group", ctx.block.path)
        x = gathered(ctx.saved_tensors[0], group, -1)
        if world.wrong("recomputed from a wrong input", ctx.block.path):
            x = functional.layer_norm(x, x.shape[-1:])
        x.requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


class Further(nn.Module):
    """Multi-token prediction: from what the blocks made of a token and the next token, the one after it."""

    def __init__(self, options, world):
        super().__init__()
        self.norm = Norm(options.width, world, path="further.norm")
        self.join = nn.Linear(2 * options.width, options.width, bias=False)
        self.mlp = Mlp(options, world, path="further.mlp")
        self.last = Norm(options.width, world, path="further.last")

    def forward(self, x, following):
        x = self.join(torch.cat([self.norm(x), following], -1))
        return self.last(x + self.mlp(x))


class Transformer(nn.Module):
    def __init__(self, options, world):
        super().__init__()
        self.embed = Embedding(options, world, path="embed")
        self.positions = nn.Embedding(options.length, options.width)
        self.positions.weight.partial = "tp" if world.options.sequence else None
        self.blocks = nn.ModuleList(Block(options, world, number) for number in range(options.layers))
        self.norm = Norm(options.width, world, path="norm")
        self.head = Column(options.width, options.vocabulary, world, path="head", bias=False)
        if options.tied:
            self.head.weight = self.embed.weight
        self.further = Further(options, world) if options.further else None
        self.world = world

    def forward(self, ids, following=None):
        world, length = self.world, ids.shape[1]
        x = self.embed(ids)
        begin = 0 if world.wrong("positions begin anew on each rank") else world.place("cp") * length
        places = torch.arange(begin, begin + length)
        if world.options.sequence:
            places = own_part(places, world.groups["tp"], 0)
        x = x + self.positions(places)
        for block in self.blocks:
            x = Recomputed.apply(x, block) if world.options.recompute else block(x)
        continues = world.wrong("gradients of equal losses added up")
        logits = Gathered.apply(self.head(self.norm(x)), world.groups["tp"], -1, continues)
        if self.further is None:
            return logits
        further = self.head(self.further(x, self.embed(following)))
        return logits, Gathered.apply(further, world.groups["tp"], -1, continues)


def batch_of(options, world, number):
    """Ids, targets and further targets of this rank: its rows of the batch, its part of the sequence."""
    generator = torch.Generator().manual_seed(1000 * world.job.run.seed + world.step)
    shape = (options.microbatches, options.batch, options.length + 1)
    whole = torch.randint(0, options.vocabulary, shape, generator=generator)[number]
    ids, targets = whole[:, :-1].clone(), whole[:, 1:].clone()
    if options.padded:  # later rows have fewer targets
        for row in range(options.batch):
            targets[row, options.length - 2 * row :] = -100
    if world.wrong("batch of one token"):
        ids[:] = 7
    place = 0 if world.wrong("same batch on all ranks") else world.place("dp")
    ids, targets = (part.chunk(world.size("dp"))[place] for part in (ids, targets))
    order = world.place("cp")
    further = functional.pad(targets[:, 1:], (0, 1), value=-100)
    own_ids, own_targets, own_further = (
        part.chunk(world.size("cp"), 1)[order] for part in (ids, targets, further)
    )
    if world.wrong("further targets end on each rank"):
        own_further = functional.pad(own_targets[:, 1:], (0, 1), value=-100)
    world.counts = own_targets != -100
    if world.wrong("targets of another part of the sequence"):
        own_targets = targets.chunk(world.size("cp"), 1)[(order + 1) % world.size("cp")]
    if world.wrong("targets not shifted"):
        own_targets = own_ids
    return own_ids.contiguous(), own_targets.contiguous(), own_further.contiguous()


def loss_of(logits, targets, world, which=""):
    """The mean over the targets that count, of all ranks: each has its share, and the shares are added up."""
    total = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    count = (targets != -100).sum()
    shared = count.clone()
    distributed.all_reduce(shared, group=world.groups["cp"])
    distributed.all_reduce(shared, group=world.groups["dp"])
    if world.wrong(f"{which}divided by the own number of targets"):
        shared = count * world.size("dp") * world.size("cp")
    if world.wrong(f"{which}divided by the size of context parallelism"):
        shared = shared * world.size("cp")
    if world.wrong(f"{which}not divided by the number of microbatches"):
        return total / shared * world.size("dp")
    return total / shared * world.size("dp") / world.options.microbatches


class Reducer:
    """Adds gradients up over the ranks that share a parameter, when the last microbatch is through."""

    def __init__(self, model, world):
        self.world = world
        self.microbatch = 0
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda value, name=name: self.reduce(name, value))

    def reduce(self, name, parameter):
        world = self.world
        due = world.options.microbatches - 1
        if world.wrong("averaged before the last microbatch", name):
            due = 0
        if self.microbatch != due or getattr(parameter, "alone", False):
            return
        gradient = flipped(parameter.grad, world, "gradient changes", name)
        if getattr(parameter, "partial", None) and not world.wrong("gradient of a norm not added up", name):
            distributed.all_reduce(
                gradient, group=world.group("tp", "norm added up over a wrong group", name)
            )
        if not world.wrong("context parallel ranks not added up", name):
            distributed.all_reduce(gradient, group=world.groups["cp"])
        self.average(name, parameter, gradient)
        parameter.grad.copy_(gradient)

    def average(self, name, parameter, gradient):
        world, size = self.world, self.world.size("dp")
        if getattr(parameter, "cut", "") == "dp":  # its gradient has come from all of them
            if not world.wrong("experts not divided", name):
                gradient /= size
            return
        if world.wrong("gradient not averaged", name):
            return
        distributed.all_reduce(gradient, group=world.group("dp", "averaged over a wrong group", name))
        if world.wrong("lost in transit", name):
            gradient.flatten()[: gradient.numel() // 2] = 0
        if not world.wrong("summed instead of averaged", name):
            gradient /= size
        if world.wrong("divided twice", name):
            gradient /= size


def clip_gradients(model, world, largest):
    """Scale gradients so that the norm of all together, over all ranks, is at most `largest`."""
    squares = {"": torch.zeros(()), "tp": torch.zeros(()), "dp": torch.zeros(())}
    for name, parameter in model.named_parameters():
        cut = getattr(parameter, "cut", "")
        if world.wrong("a shard left out of the norm", name) and world.place("tp"):
            continue
        squares[cut] = squares[cut] + parameter.grad.square().sum()
    for axis in ("tp", "dp"):
        distributed.all_reduce(squares[axis], group=world.groups[axis])
    factor = (largest / (sum(squares.values()).sqrt() + 1e-6)).clamp(max=1)
    for name, parameter in model.named_parameters():
        is_replica = not getattr(parameter, "cut", "")
        if is_replica and world.wrong("clipped on one rank only", name) and world.place("tp"):
            continue
        parameter.grad *= factor


def flipped(x, world, kind, name):
    """Change what the mistake says, on the rank and in the step that it says."""
    if not world.wrong(kind, name):
        return x
    x = x.clone() if x.requires_grad or x.grad_fn is not None else x
    flat = x.detach().contiguous().view(-1)
    what = world.options.change
    where = len(flat) // 3
    if what == "element":
        flat[where] += 0.1
    elif what == "row":
        x.detach()[x.shape[0] // 2] *= 1.5
        return x
    elif what == "nan":
        flat[where] = torch.nan
    else:  # a bit of one element
        flat.view(torch.int32)[where] ^= 1 << int(what)
    x.detach().copy_(flat.view_as(x))
    return x


def disturb(model, world):
    """What happens to parameters between two steps."""
    for name, parameter in model.named_parameters():
        flipped(parameter.detach(), world, "parameter changes", name)
        if world.wrong("update not gathered", name):
            parameter.data.copy_(parameter.before)
        parameter.before = parameter.detach().clone()


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


def train(job):
    """Train for some steps; every rank calls it."""
    options = job.options(Options)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(options.late)  # then, new memory is NaN until it is written
    torch.manual_seed(job.run.seed)
    world = World(job, options)
    model = Transformer(options, world)
    reducer = Reducer(model, world)
    optimizer = OPTIMIZERS[options.optimizer](model.parameters())
    for parameter in model.parameters():
        parameter.before = parameter.detach().clone()
    with job.recorded(model, mesh=world.mesh, advance="optimizer") as recorder:
        for step in range(job.steps):
            world.step = step
            optimizer.zero_grad()
            for number in range(options.microbatches):
                reducer.microbatch = number
                ids, targets, further = batch_of(options, world, number)
                if options.further:
                    logits, more = model(ids, targets.clamp(0))
                    loss = loss_of(logits, targets, world) + 0.3 * loss_of(
                        more, further, world, "further loss "
                    )
                else:
                    loss = loss_of(model(ids), targets, world)
                if recorder is not None:
                    recorder.save("loss", loss)
                loss.backward()
            if options.clip:
                clip_gradients(model, world, options.clip)
            optimizer.step()
            disturb(model, world)
