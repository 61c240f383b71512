"""Operators that no system dumps, and why.

(TensorFlow on Ascend, accuracy comparison: "During graph execution, the following operators do not generate
dump data". MindSpore: nodes of the graph that are not kernels.)
"""

from __future__ import annotations

import re

_CONTROL = frozenset(
    ["if", "while", "case", "for", "statelessif", "statelesswhile", "statelesscase", "partitionedcall"]
)
_NO_TASK = frozenset(
    ["data", "const", "constant", "variable", "netoutput", "stackpush", "stackpop", "stack", "stackclose"]
)
_OF_GRAPH = frozenset(["load", "updatestate", "depend", "maketuple", "tuplegetitem", "return", "valuenode"])
_FUSED = re.compile(r"(?:reshape|expanddims|squeeze|flatten|identity|noop|controltrigger)")


def why_never_dumped(op_type: str) -> str:
    """Return why an operator of a type has no dump; "" if nothing speaks against one.

    >>> why_never_dumped("While")
    'control flow has no tensors of its own'
    """
    name = op_type.lower().replace("_", "")
    if name in _CONTROL:
        return "control flow has no tensors of its own"
    if name in _NO_TASK:
        return "it runs as no task (`_no_task`): there is nothing to dump"
    if name in _OF_GRAPH:
        return "it exists in the graph alone, and runs as no kernel"
    if _FUSED.fullmatch(name):
        return "it only renames memory, so it is optimised away or runs as no kernel"
    return ""
