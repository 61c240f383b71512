"""The names of the nodes of a Zarr view: rank, step, operator, then slot.

    rank_1/step_2/Log.Default_net-LogLoss_Log-op0/output.0
    rank_1/step_2/{graph}/...                                  if a step has several graphs
    rank_1/run/...                                             what does not belong to a step

Names in a dump may contain any characters. A part of a path is a valid name of a node (zarr-specs, "Node
names"), does not lead out of its group, and cannot control a terminal: all other bytes are written as `%XX`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from workers.store.model import RowKind
from workers.store.names import slot_name, tensor_name
from workers.store.tables import Tables

NO_GRAPH = "no_graph"
"""The graph of operators without one, in a step in which other operators have one."""


def escape(name: str) -> str:
    """Return a name as one part of a path. Different names give different parts.

    `%XX` stands for a byte, in UTF-8, of a separator, of a character that cannot be printed, of `%` itself,
    or of the first character of a name that Zarr reserves.
    """
    if name.isascii() and name.isidentifier() and not name.startswith("__"):
        return name
    escaped = "".join(map(_escaped_character, name))
    is_reserved = escaped.startswith("__") or not escaped.strip(".") or escaped == "zarr.json"
    if is_reserved:
        return _quoted(escaped[0]) + escaped[1:] if escaped else "%"
    return escaped


def _escaped_character(character: str) -> str:
    return character if character.isprintable() and character not in "/\\%" else _quoted(character)


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


@dataclass(slots=True)
class OperatorGroup:
    """A group of the view: the tensors of one operator."""

    row: int
    """A row of the index that belongs to the operator."""
    arrays: dict[str, int] = field(default_factory=dict)
    """Rows of the tensors that were dumped, by name."""
    statistics_only: dict[str, int] = field(default_factory=dict)
    """Rows of the tensors of which only statistics were dumped, by name."""


@dataclass(frozen=True, slots=True)
class StepNames:
    """The nodes of one step of one rank, in order of execution. Paths are relative to the step."""

    operators: dict[str, OperatorGroup]
    """By path."""
    graphs: dict[str, list[str]]
    """The names of the operators of each graph, by its name; empty if the step has only one graph."""

    def children(self, path: str) -> list[str] | None:
        """Return the names of the nodes below a group; None if the group does not exist."""
        if not path:
            return list(self.graphs or self.operators)
        if path in self.graphs:
            return self.graphs[path]
        operator = self.operators.get(path)
        return None if operator is None else list(operator.arrays)

    def row_of(self, path: str) -> int | None:
        """Return the row of the tensor at a path; None if no array is there."""
        group, _, name = path.rpartition("/")
        operator = self.operators.get(group)
        return None if operator is None else operator.arrays.get(name)


def name_tensors(tables: Tables) -> StepNames:
    """Return the names of all tensors of a step. The same index always gives the same names."""
    rows = list(_rows(tables))
    levels = _graph_levels([(net, graph) for _, net, graph, *_ in rows])
    operators: dict[str, OperatorGroup] = {}
    graphs: dict[str, list[str]] = {}
    for row, net, graph, op_type, op_name, io, slot, occurrence, kind in rows:
        name = path = escape(f"{op_type}.{op_name}")
        if levels:
            path = f"{levels[net, graph]}/{name}"
        operator = operators.get(path)
        if operator is None:
            operator = operators[path] = OperatorGroup(row)
            if levels:
                graphs.setdefault(levels[net, graph], []).append(name)
        members = operator.arrays if kind == RowKind.TENSOR else operator.statistics_only
        array = escape(slot_name(io, slot, occurrence))
        members[_unused(array, operator.arrays, operator.statistics_only)] = row
    return StepNames(operators, graphs)


def variable_names(tables: Tables) -> dict[str, int]:
    """Return a name for each tensor that was dumped, unique in the step, and its row.

    The name is `Tensor.name`, with the graph in front of it if another graph has a tensor of that name.
    """
    rows = [fields for fields in _rows(tables) if fields[-1] == RowKind.TENSOR]
    levels = _graph_levels([(net, graph) for _, net, graph, *_ in rows])
    graphs_by_name: dict[str, set[tuple[str, str]]] = {}
    plain = []
    for _, net, graph, op_type, op_name, io, slot, occurrence, _ in rows:
        plain.append(escape(tensor_name(op_type, op_name, io, slot, occurrence)))
        graphs_by_name.setdefault(plain[-1], set()).add((net, graph))
    names: dict[str, int] = {}
    for name, (row, net, graph, *_) in zip(plain, rows, strict=True):
        full = f"{levels[net, graph]}:{name}" if len(graphs_by_name[name]) > 1 else name
        names[_unused(full, names)] = row
    return names


def _rows(tables: Tables) -> Iterator[tuple[int, str, str, str, str, str, int, int, str]]:
    """Yield row, net, graph, operator type and name, io, slot, occurrence and kind of each tensor."""
    labels = (tables.label(name) for name in ("net", "graph", "op_type", "op_name", "io"))
    numbers = (tables.number(name).tolist() for name in ("slot", "occurrence"))
    columns = (*labels, *numbers, tables.label("kind"))
    for row, fields in enumerate(zip(*columns, strict=True)):
        if fields[-1] in {RowKind.TENSOR, RowKind.STATISTICS}:
            yield row, *fields


def _graph_levels(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the name of each graph, by net and graph; an empty dictionary if there is only one graph."""
    distinct = list(dict.fromkeys(pairs))
    if len(distinct) <= 1:
        return {}
    graphs = [graph for _, graph in distinct]
    levels: dict[str, tuple[str, str]] = {}
    for net, graph in distinct:
        # Two networks may each have a graph 0.
        name = f"{net}.{graph or NO_GRAPH}" if graphs.count(graph) > 1 and net else graph or NO_GRAPH
        levels[_unused(escape(name), levels)] = net, graph
    return {pair: name for name, pair in levels.items()}


def _unused(name: str, *taken: Container[str]) -> str:
    """Return a name that none of these containers has, by adding `~1`, `~2` and so on."""
    candidate, copy = name, 0
    while any(candidate in names for names in taken):
        copy += 1
        candidate = f"{name}~{copy}"
    return candidate
