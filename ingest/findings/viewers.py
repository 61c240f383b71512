"""What is known about a store for the viewers of others: a trace for Perfetto, graphs for Model Explorer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from ingest.findings.tables import free_paths
from ingest.questions.origin import SpreadGraph, origin
from ingest.questions.origin.answer import PASSAGE
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from ingest.reader.output_file import Writable, output_file
from ingest.reader.step import Step
from ingest.reader.step_flow import FlowCall, flow_of
from ingest.reader.tensor import Tensor
from workers.errors import UsageError

#: How long each operator takes in a trace, in nanoseconds.
_LASTS = 1_000


def export_trace(
    store: Catalog,
    directory: str | Path,
    rank: Choice = None,
    step: Choice = None,
    *,
    overwrite: bool = False,
    damages: list[Damage] | None = None,
) -> dict[Path, int]:
    """Write `trace.pftrace` for Perfetto's viewer; return its number of operators.

    Each rank is a process: a slice for each step, in it one for each operator, in order of execution. A dump
    does not say how long they took, so each takes a microsecond, and a step begins at the same time on all
    ranks. The norms of outputs are counters, one for each role. Flows show how the first NaN or Inf spread in
    its step. Needs the package perfetto. Memory: the flow of one step.

    Args:
        store: the store, which is listed again.
        directory: created if missing.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        overwrite: replace an existing file.
        damages: takes steps that cannot be read; they raise if it is None.

    Raises:
        UsageError: perfetto is not installed, a rank or step does not exist, or the file exists already.
        DamagedStore: a step cannot be read.
    """
    (path,) = free_paths(directory, ["trace.pftrace"], overwrite=overwrite)
    listed = store.reopened()
    steps = [one for one in listed.select(rank, step, damages=damages) if one.key.step is not None]
    spread = origin(listed, rank, step).spread.graph
    Path(directory).mkdir(parents=True, exist_ok=True)
    with output_file(path) as file:
        trace = _Trace(file, spread)
        begin = 0
        for _, of_ranks in groupby(steps, lambda one: one.key.step):
            begin = max([trace.add(one, begin) for one in of_ranks]) + _LASTS
    return {path: trace.operators}


def export_graphs(
    store: Catalog,
    directory: str | Path,
    rank: Choice = None,
    step: Choice = None,
    *,
    overwrite: bool = False,
    damages: list[Damage] | None = None,
) -> dict[Path, int]:
    """Write `graphs.json` and node data for Model Explorer; return how many operators each file knows.

    A graph is a step of a rank: operators, in layers by the parts of their names, and what passed between
    them, as contents and the graph of the dump show. Node data are how many elements of its outputs are NaN
    or Inf, and the norm of its outputs. Memory: all that is written, so choose ranks and steps.

    The arguments and errors are those of `export_trace`.
    """
    paths = free_paths(directory, ("graphs.json", *_NODE_DATA), overwrite=overwrite)
    steps = [one for one in store.reopened().select(rank, step, damages=damages) if one.key.step is not None]
    known = {f"rank {one.key.rank}, step {one.key.step}": _nodes_of(one) for one in steps}
    graphs = [{"id": graph, "nodes": nodes} for graph, (nodes, _) in known.items()]
    contents: list[object] = [{"label": store.url.rstrip("/").rpartition("/")[2], "graphs": graphs}]
    counts = [sum(len(nodes) for nodes, _ in known.values())]
    for name, colours in _NODE_DATA.items():
        results = {graph: _chosen(numbers, name) for graph, (_, numbers) in known.items()}
        contents.append({graph: {"results": each, **colours} for graph, each in results.items()})
        counts.append(sum(map(len, results.values())))
    Path(directory).mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, contents, strict=True):
        with output_file(path) as file:
            file.write(json.dumps(content, allow_nan=False).encode())
    return dict(zip(paths, counts, strict=True))


def _chosen(numbers: Mapping[str, Mapping[str, float]], name: str) -> dict[str, dict[str, float]]:
    return {node: {"value": each[name]} for node, each in numbers.items() if name in each}


#: The files of node data for Model Explorer, each with the colours of its numbers.
_NODE_DATA = {
    "nan_and_inf.json": {
        "thresholds": [{"value": 0, "bgColor": "white"}, {"value": 2**63, "bgColor": "tomato"}]
    },
    "norm.json": {"gradient": [{"stop": 0, "bgColor": "white"}, {"stop": 1, "bgColor": "orange"}]},
}


def _nodes_of(step: Step) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    """Return a node for each call of a step, and by its name the number for each file of node data."""
    flow = flow_of(step)
    ends = {
        output.row: (str(number), str(slot))
        for number, call in enumerate(flow.calls.values())
        for slot, output in enumerate(call.outputs)
    }
    written = {each.target: [ends[each.source]] for each in flow.passings() if each.source in ends}
    nodes, results = [], {}
    for number, call in enumerate(flow.calls.values()):
        tensors = [step.tensor_of(output.row) for output in call.outputs]
        nodes.append({"id": str(number), **_node(call, tensors, written)})
        results[str(number)] = _numbers_of(tensors)
    return nodes, results


def _node(
    call: FlowCall, tensors: list[Tensor], written: Mapping[int, list[tuple[str, str]]]
) -> dict[str, Any]:
    """Return what Model Explorer shows of a call.

    Args:
        call: the call.
        tensors: its outputs.
        written: by the row of an input: the node and the output that it comes from, if they are known.
    """
    key = call.key
    spelt = next((tensor.full_name for tensor in tensors if tensor.full_name), key.op_name)
    return {
        "label": key.op_type,
        "namespace": "/".join(re.split(r"[./]", spelt)[:-1]),
        "attrs": _attributes({"name": spelt, "graph": key.graph, "run": key.occurrence}),
        "incomingEdges": [
            {"sourceNodeId": source, "sourceNodeOutputId": output, "targetNodeInputId": str(slot)}
            for slot, operand in enumerate(call.inputs)
            for source, output in written.get(operand.row, ())
        ],
        "outputsMetadata": [
            {"id": str(slot), "attrs": _attributes(tensor.to_dict())} for slot, tensor in enumerate(tensors)
        ],
    }


def _numbers_of(tensors: list[Tensor]) -> dict[str, float]:
    """Return the number of outputs of a call for each file of node data, if it is known."""
    known = [tensor.statistics for tensor in tensors]
    bad = math.fsum(each.nan_count + each.pos_inf_count + each.neg_inf_count for each in known)
    norm = math.hypot(*(each.l2_norm for each in known))
    numbers = {"nan_and_inf.json": bad, "norm.json": norm} if known else {}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _attributes(values: Mapping[str, object]) -> list[dict[str, str]]:
    """Return what is known, as Model Explorer shows it."""
    return [
        {"key": name, "value": str(value)} for name, value in values.items() if value not in (None, "", [])
    ]


class _Trace:
    """A trace of Perfetto; see `export_trace`.

    Args:
        file: takes its packets.
        spread: what the origin spread to.
    """

    def __init__(self, file: Writable, spread: SpreadGraph) -> None:
        try:
            from perfetto.trace_builder import proto_builder  # deferred: an extra
        except ImportError as exc:
            hint = "Install it: pip install 'dump-ingest[perfetto]'."
            raise UsageError("a trace for Perfetto needs the package perfetto", hint=hint) from exc
        self._builder: Any = proto_builder.StreamingTraceProtoBuilder(file)
        self._tracks: dict[tuple[int, str], int] = {}
        flows: dict[tuple[int | None, int, str, str, str, int], set[int]] = {}
        for number, edge in enumerate(spread.edges, len(spread.nodes) + 1):
            ends = [spread.nodes[edge.source], spread.nodes[edge.target]]
            passages = [node.id for node in ends if node.kind == PASSAGE]
            for node in ends:
                place = (node.rank, node.step, node.graph, node.op_type, node.op_name, node.occurrence)
                flows.setdefault(place, set()).update(passages or [number])
        self._flows = flows
        self.operators = 0

    def add(self, step: Step, at: int) -> int:
        """Add a step of a rank, and return when it ends.

        Args:
            step: the step.
            at: when it begins, in nanoseconds.
        """
        rank, number = step.key.rank, int(step.key.step or 0)
        track = self._track(rank)
        self._event(at, track, "TYPE_SLICE_BEGIN", name=f"step {number}")
        for key, call in flow_of(step).calls.items():
            flows = self._flows.get((rank, number, *key[1:]), ())
            name = f"{key.op_type} ({key.op_name})"
            self._event(
                at, track, "TYPE_SLICE_BEGIN", name=name, categories=[key.op_type], flow_ids=sorted(flows)
            )
            for output in call.outputs:
                tensor = step.tensor_of(output.row)
                if math.isfinite(norm := tensor.statistics.l2_norm):
                    counter = self._track(rank, f"norm of {tensor.role or 'output'}")
                    self._event(at, counter, "TYPE_COUNTER", double_counter_value=norm)
            at += _LASTS
            self._event(at, track, "TYPE_SLICE_END")
            self.operators += 1
        self._event(at, track, "TYPE_SLICE_END")
        return at

    def _track(self, rank: int, counter: str = "") -> int:
        """Return the track of a rank, or that of one of its counters; describe it at first."""
        if (rank, counter) not in self._tracks:
            described: dict[str, Any] = (
                {"name": counter, "parent_uuid": self._track(rank), "counter": {}}
                if counter
                else {"process": {"pid": rank + 1, "process_name": f"rank {rank}"}}
            )
            uuid = len(self._tracks) + 1
            self._tracks[rank, counter] = uuid
            self._write(track_descriptor={"uuid": uuid, **described})
        return self._tracks[rank, counter]

    def _event(self, at: int, track: int, kind: str, **fields: Any) -> None:
        event = {"type": kind, "track_uuid": track, **fields}
        self._write(timestamp=at, trusted_packet_sequence_id=1, track_event=event)

    def _write(self, **fields: Any) -> None:
        packet = self._builder.create_packet()
        self._builder.write_packet(type(packet)(**fields))
