"""The mistakes and harmless changes of `tests.sharded_net`, and where a comparison must find a mistake."""

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
