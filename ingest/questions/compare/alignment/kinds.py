"""What operators do, whatever frameworks and compilers call them.

`aten.addmm.out`, `Module.Linear`, `MatMulBiasAddFusion` and `Dense` all multiply matrices. A fused operator
does several things, and a backward operator does them backwards.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PREFIX = re.compile(r"^(?:aten|prims?|torch|tensor|functional|primitive|mint|module|cell|npu|vf|ops)[._:]+")
_SUFFIX = re.compile(r"[._](?:default|out|tensor|scalar|int|dim_?intlist|self|onednn)$")
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_BACKWARD = re.compile(r"grad(?!uate)|backward|bprop")
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in {
        "matmul": r"matmul|addmm|bmm|^mm|linear|dense|gemm|einsum|mmfp",
        "conv": r"conv(?!ert)",
        "bias": r"biasadd|addmm|linear|dense",
        "add": r"(?<!bias)add(?!mm|rms|cmul|cdiv)|^sum|reducesum|tensoradd",
        "sub": r"sub",
        "mul": r"(?<!mat)mul(?!ti|n)",
        "div": r"div|rsqrt|reciprocal",
        "relu": r"relu",
        "gelu": r"gelu",
        "silu": r"silu|swish|swiglu",
        "sigmoid": r"sigmoid",
        "tanh": r"tanh",
        "softmax": r"softmax|attention",
        "norm": r"norm",
        "pool": r"pool",
        "mean": r"mean",
        "loss": r"loss|nll|entropy",
        "embedding": r"embedding|gather|indexselect|take",
        "dropout": r"dropout",
        "attention": r"attention|sdpa",
        "parameter": r"^parameter$",
        "reduce": r"allreduce|reducescatter|allgather|alltoall",
        "optimizer": r"adam|momentum|sgd|lamb|lars|rmsprop|adagrad|ftrl",
        "move": r"^t$|transpose|permute|view|reshape|flatten|squeeze|contiguous|clone|copy|detach|alias"
        r"|identity|expand|broadcast|^cast$|^to$|^depend$|^load$|tupleget|getitem|slice|split|concat|^cat$|stack",
    }.items()
)


@lru_cache(maxsize=4096)
def plain_type(op_type: str) -> str:
    """Return a type of operators without what frameworks put around it: `addmm` for `aten.addmm.out`."""
    text, before = op_type.lower(), ""
    while text != before:
        before, text = text, _SUFFIX.sub("", _PREFIX.sub("", text))
    return _SEPARATORS.sub("", text)


@lru_cache(maxsize=4096)
def kinds_of(op_type: str) -> frozenset[str]:
    """Return the kinds of an operator type; its plain name if they are not known.

    >>> sorted(kinds_of("MatMulBiasAddReluFusion"))
    ['bias', 'matmul', 'relu']
    """
    plain = plain_type(op_type)
    known = {kind for kind, pattern in _KINDS if pattern.search(plain)}
    known = known or {plain}
    return frozenset(f"{kind} backward" for kind in known) if _BACKWARD.search(plain) else frozenset(known)


def only_moves(op_type: str) -> bool:
    """Return whether operators of a type pass elements on as they are, in another place or shape."""
    return kinds_of(op_type) == {"move"}
