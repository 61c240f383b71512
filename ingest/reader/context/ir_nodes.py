"""Parse the edges of MindSpore's `.ir` files: from which operator or parameter each input comes.

    %10(equiv_12_x) = PrimFunc_MatMul(%8, %9, Bool(0), Bool(1)) {instance name: matmul} primitive_attrs: {...}

`%8` is another node of the same subgraph, `%para6_fc1.weight` is a parameter. Some nodes only pass on what
they read: `Load` a parameter, `Depend` its first input, `TupleGetItem` one output of several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_NODE = re.compile(rb"%(\w+)\([^()]*\) = (?:PrimFunc_)?([\w.]+)\(")
_PARAMETER = re.compile(r"%para\d+_(.+)")
_INDEX = re.compile(r"[IU](?:nt)?(?:32|64)\((\d{1,6})\)")
#: Nodes whose output is their first input.
PASSING = frozenset(["Load", "Depend"])
_OPENING, _CLOSING = "([{<", ")]}>"


class IrSource(NamedTuple):
    """What an operator reads: an output of another operator, or a parameter."""

    name: str
    """The full name of the operator, or the name of the parameter."""
    slot: int
    """The slot of the output; -1 for a parameter."""

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, or an input of the network."""
        return self.slot < 0


@dataclass(slots=True)
class _Node:
    source: IrSource | None = None
    """What reading the node means; None if that is not known, as for constants."""


@dataclass(slots=True)
class NodeTable:
    """The nodes of the subgraph that is being read, by their numbers."""

    _nodes: dict[str, _Node] = field(default_factory=dict)
    _last: _Node | None = None
    """The node of the last line, unless it passes on what it reads."""

    def add_line(self, line: bytes) -> tuple[IrSource | None, ...]:
        """Take a line of a file, and return what the node in it reads, by slot; empty if it is not a node."""
        self._last = None
        if line.startswith(b"subgraph"):
            self._nodes.clear()  # numbers begin again
        match = _NODE.match(line)
        if match is None:
            return ()
        arguments = list(split_arguments(line[match.end() :].decode("utf-8", "replace")))
        inputs = tuple(self._source_of(argument) for argument in arguments)
        node = self._nodes[match[1].decode()] = _Node()
        op_type = match[2].decode()
        if op_type in PASSING:
            node.source = inputs[0] if inputs else None
        elif op_type == "TupleGetItem":
            node.source = _output_of(inputs, arguments)
        else:
            self._last = node
        return inputs

    def name_last(self, name: str) -> None:
        """Give the node of the last line the full name of its operator, which the file has below it."""
        if self._last is not None:
            self._last.source = IrSource(name, 0)

    def _source_of(self, argument: str) -> IrSource | None:
        if parameter := _PARAMETER.fullmatch(argument):
            return IrSource(parameter[1], -1)
        node = self._nodes.get(argument[1:]) if argument.startswith("%") else None
        return node.source if node is not None else None


def _output_of(inputs: tuple[IrSource | None, ...], arguments: list[str]) -> IrSource | None:
    """Return the output that a `TupleGetItem` chooses."""
    source = inputs[0] if len(inputs) == 2 else None
    index = _INDEX.fullmatch(arguments[1]) if source is not None else None
    return None if source is None or index is None else IrSource(source.name, int(index[1]))


def split_arguments(text: str) -> Iterator[str]:
    """Yield the arguments of a node, up to the bracket that closes them; nothing is cut within brackets."""
    depth, begin, quoted = 0, 0, False
    for place, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if depth < 0 or (depth == 0 and character == "," and not quoted):
            if argument := text[begin:place].strip():
                yield argument
            begin = place + 1
        if depth < 0:
            return
