"""Parse the edges of MindSpore's `.ir` files: from which operator or parameter each input comes.

    %10(equiv_12_x) = PrimFunc_MatMul(%8, %9, Bool(0), Bool(1)) {instance name: matmul} primitive_attrs: {...}

`%8` is another node of the same subgraph, `%para6_fc1.weight` is a parameter. Some nodes only pass on what
they read: `Load` a parameter, `Depend` its first input, `TupleGetItem` one output of several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_NODE = re.compile(rb"%(\w+)\([^()]*\) = (?:PrimFunc_)?([\w.]+)\(")
_PARAMETER = re.compile(r"%para\d+_(.+)")
_INDEX = re.compile(r"[IU](?:nt)?(?:32|64)\((\d{1,6})\)")
#: How lines begin that do not belong to the arguments of a node, without the blanks before them.
_OWN_LINES = (b"#", b":", b"subgraph", b"}")
#: Nodes whose output is their first input.
PASSING = frozenset(["Load", "Depend"])
_OPENING, _CLOSING = "([{<", ")]}>"
_SPECIAL = re.compile(r'["()\[\]{}<>,]')
#: The part of an argument that is kept: names are shorter, and constants are not needed.
_MAX_ARGUMENT = 4096


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
class ArgumentReader:
    """Takes the arguments of a node, line by line, up to the bracket that closes them."""

    arguments: list[str] = field(default_factory=list)
    is_closed: bool = False
    _begun: str = ""
    """The argument that has no end yet."""
    _depth: int = 0
    _quoted: bool = False

    def take(self, text: str) -> None:
        """Take another line, or the rest of one; nothing is cut within brackets or quotes."""
        begin = 0
        for special in _SPECIAL.finditer(text):
            character = special[0]
            if character == '"':
                self._quoted = not self._quoted
            elif self._quoted:
                continue
            elif character in _OPENING:
                self._depth += 1
            elif character in _CLOSING:
                self._depth -= 1
            if self._depth < 0 or (character == "," and not self._depth):
                self._end(text[begin : special.start()])
                begin = special.end()
            if self._depth < 0:
                self.is_closed = True
                return
        self._begun = (self._begun + text[begin:])[:_MAX_ARGUMENT]

    def _end(self, rest: str) -> None:
        if argument := (self._begun + rest).strip()[:_MAX_ARGUMENT]:
            self.arguments.append(argument)
        self._begun = ""


@dataclass(slots=True)
class NodeTable:
    """The nodes of the subgraph that is being read, by their numbers."""

    _nodes: dict[str, _Node] = field(default_factory=dict)
    _last: _Node | None = None
    """The node of the last line, unless it passes on what it reads."""
    _open: tuple[_Node, str, ArgumentReader] | None = None
    """The node whose arguments go on in the next line, its type, and what is known of them."""

    def add_line(self, line: bytes) -> tuple[IrSource | None, ...]:
        """Take a line of a file, and return what the node in it reads, by slot; empty if it is not a node.

        If its arguments go on in the next line, these are the first of them; see `add_more`.
        """
        self._last = self._open = None
        if line.startswith(b"subgraph"):
            self._nodes.clear()  # numbers begin again
        match = _NODE.match(line)
        if match is None:
            return ()
        reader = ArgumentReader()
        reader.take(line[match.end() :].decode("utf-8", "replace"))
        node = self._nodes[match[1].decode()] = _Node()
        op_type = match[2].decode()
        if not reader.is_closed:
            self._open = (node, op_type, reader)
        return self._read(node, op_type, reader)

    def goes_on(self, line: bytes) -> bool:
        """Return whether a line belongs to the arguments of the node before it."""
        return self._open is not None and not (line.startswith(_OWN_LINES) or _NODE.match(line))

    def add_more(self, line: bytes) -> tuple[IrSource | None, ...] | None:
        """Take a further line of a node, and return all that it reads; None if it still goes on."""
        if self._open is None:
            return None
        node, op_type, reader = self._open
        reader.take(line.decode("utf-8", "replace"))
        if not reader.is_closed:
            return None
        self._open = None
        return self._read(node, op_type, reader)

    def _read(self, node: _Node, op_type: str, reader: ArgumentReader) -> tuple[IrSource | None, ...]:
        arguments = reader.arguments
        inputs = tuple(self._source_of(argument) for argument in arguments)
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
