"""What a tensor is called where every tensor is an array of its own: rank, step, operator, then slot.

    rank_1/step_2/Log.Default_net-LogLoss_Log-op0/output.0
    rank_1/step_2/{graph}/...                                  where a step has several graphs
    rank_1/run/...                                             what belongs to no step

Names of a dump may hold anything. Here a part of a path is what zarr takes for a node (zarr-specs, "Node
names"), and nothing that leads out of its group or that a terminal obeys: every other byte is `%XX`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from workers.store.model import RowKind
from workers.store.tables import Tables

NO_GRAPH = "no_graph"
"""Stands for the graph of an operator that has none, where others have one."""


def escape(name: str) -> str:
    """Return a name as one part of a path; other names give other parts.

    `%XX` are the bytes, in UTF-8, of separators, of characters that cannot be printed, of `%` itself, and of
    the first one of names that Zarr keeps for itself.
    """
    if name.isascii() and name.isidentifier() and not name.startswith("__"):
        return name
    escaped = "".join(c if c.isprintable() and c not in "/\\%" else _quoted(c) for c in name)
    if escaped.startswith("__") or not escaped.strip(".") or escaped == "zarr.json":
        return _quoted(escaped[0]) + escaped[1:] if escaped else "%"
    return escaped


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


@dataclass(slots=True)
class Operator:
    """One group of the view: the tensors of one operator."""

    row: int
    """A row of the index that tells of the operator."""
    arrays: dict[str, int] = field(default_factory=dict)
    """Rows of the tensors that were dumped, by name."""
    statistics_only: dict[str, int] = field(default_factory=dict)
    """Rows of those of which only statistics were dumped, by name."""


@dataclass(frozen=True, slots=True)
class StepNames:
    """What one step of one rank holds, in order of execution. Paths are relative to the step."""

    operators: dict[str, Operator]
    """By path."""
    graphs: dict[str, list[str]]
    """Names of the operators of each graph, where the step has several; by name of the graph."""

    def children(self, path: str) -> list[str] | None:
        """Return the names of the nodes below a group; None where there is no such group."""
        if not path:
            return list(self.graphs or self.operators)
        if path in self.graphs:
            return self.graphs[path]
        operator = self.operators.get(path)
        return None if operator is None else list(operator.arrays)

    def row_of(self, path: str) -> int | None:
        """Return the row of the tensor at this path; None where there is none."""
        group, _, name = path.rpartition("/")
        operator = self.operators.get(group)
        return None if operator is None else operator.arrays.get(name)


def name_tensors(tables: Tables) -> StepNames:
    """Give every tensor of a step its place. The same index always gives the same names."""
    rows = list(_rows(tables))
    levels = _graph_levels([(net, graph) for _, net, graph, *_ in rows])
    operators: dict[str, Operator] = {}
    graphs: dict[str, list[str]] = {}
    for row, net, graph, op_type, op_name, io, slot, occurrence, kind in rows:
        name = path = escape(f"{op_type}.{op_name}")
        if levels:
            path = f"{levels[net, graph]}/{name}"
        operator = operators.get(path)
        if operator is None:
            operator = operators[path] = Operator(row)
            if levels:
                graphs.setdefault(levels[net, graph], []).append(name)
        members = operator.arrays if kind == RowKind.TENSOR else operator.statistics_only
        array = escape(f"{io}.{slot}" + (f"#{occurrence}" if occurrence else ""))
        members[_unused(array, operator.arrays, operator.statistics_only)] = row
    return StepNames(operators, graphs)


def variable_names(tables: Tables) -> dict[str, int]:
    """Return a name for each tensor that was dumped, unique in the step, and its row.

    It is `Tensor.name`; with the graph before it where another graph has the same one.
    """
    rows = [fields for fields in _rows(tables) if fields[-1] == RowKind.TENSOR]
    levels = _graph_levels([(net, graph) for _, net, graph, *_ in rows])
    graphs_of: dict[str, set[tuple[str, str]]] = {}
    plain = []
    for _, net, graph, op_type, op_name, io, slot, occurrence, _ in rows:
        repeated = f"#{occurrence}" if occurrence else ""
        plain.append(escape(f"{op_type}.{op_name}.{io}.{slot}{repeated}"))
        graphs_of.setdefault(plain[-1], set()).add((net, graph))
    names: dict[str, int] = {}
    for name, (row, net, graph, *_) in zip(plain, rows, strict=True):
        full = f"{levels[net, graph]}:{name}" if len(graphs_of[name]) > 1 else name
        names[_unused(full, names)] = row
    return names


def _rows(tables: Tables) -> Iterator[tuple[int, str, str, str, str, str, int, int, str]]:
    labels = (tables.label(name) for name in ("net", "graph", "op_type", "op_name", "io"))
    numbers = (tables.number(name).tolist() for name in ("slot", "occurrence"))
    columns = (*labels, *numbers, tables.label("kind"))
    for row, fields in enumerate(zip(*columns, strict=True)):
        if fields[-1] in {RowKind.TENSOR, RowKind.STATISTICS}:
            yield row, *fields


def _graph_levels(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return what each graph is called, by net and graph; nothing where there is only one."""
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
    candidate, copy = name, 0
    while any(candidate in names for names in taken):
        copy += 1
        candidate = f"{name}~{copy}"
    return candidate
