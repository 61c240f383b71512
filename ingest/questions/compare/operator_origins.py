"""Where operators come from: the scope in the network, and the line of the program.

Two versions of a framework may name one operator `MatMul-op104` and
`Gradients_Default_network-Net_fc-Dense_Grad_MatMul_MatMul-op0`. Its scope and its line are the same in both:
the graph files of a dump have them, and so has a name that is whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.context.match import flatten
from workers.store.consolidated.blocks import OperatorKey

_NUMBER = re.compile(r"-op\d+$")
#: MindSpore 2.0 writes `gradMatMul-expand` and `gradMaxPool-meta` for what later versions call `Grad_MatMul`.
_GRADIENT = re.compile(r"(?:^|(?<=[/_]))grad([A-Z]\w*?)(?:-(?:expand|meta))?(?=/)")


@dataclass(frozen=True, slots=True)
class OperatorOrigin:
    """What is known of an operator besides its name in the dump."""

    scope: str = ""
    """The cells that it is in, spelt alike in all versions; "" if that is not known."""
    line: tuple[str, int] | None = None
    """The file, without its directory, and the line that made it."""


def origins_of(tensors: StepTensors) -> dict[OperatorKey, OperatorOrigin]:
    """Return the origin of each operator of a step. Reads the graph files of the dump, once for a rank.

    Raises:
        StoreError: the store cannot be read.
    """
    origins: dict[OperatorKey, OperatorOrigin] = {}
    for number, key in enumerate(tensors.keys):
        if key.operator not in origins:
            known = tensors.operands.line_and_name(number)
            origins[key.operator] = OperatorOrigin(
                scope_of(known.name or key.op_name, key.op_type), known.line
            )
    return origins


def scope_of(name: str, op_type: str) -> str:
    """Return the scope that the name of an operator contains; "" for none, as in `MatMul-op47`."""
    plain = flatten(_GRADIENT.sub(r"Grad_\1", _NUMBER.sub("", name)))
    scope = plain.removesuffix(op_type).rstrip("_")
    return scope if scope != plain and scope else ""
