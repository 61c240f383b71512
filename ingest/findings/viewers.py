"""What is known about a store for the viewers of others: a trace for Perfetto."""

from __future__ import annotations

import math
from itertools import groupby
from pathlib import Path
from typing import Any

from ingest.questions.origin import SpreadGraph, origin
from ingest.questions.origin.answer import PASSAGE
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from ingest.reader.output_file import Writable, output_file
from ingest.reader.step import Step
from ingest.reader.step_flow import flow_of
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
    path = _target(directory, "trace.pftrace", overwrite=overwrite)
    listed = store.reopened()
    steps = [one for one in listed.select(rank, step, damages=damages) if one.key.step is not None]
    spread = origin(listed, rank, step).spread.graph
    with output_file(path) as file:
        trace = _Trace(file, spread)
        begin = 0
        for _, of_ranks in groupby(steps, lambda one: one.key.step):
            begin = max([trace.add(one, begin) for one in of_ranks]) + _LASTS
    return {path: trace.operators}


def _target(directory: str | Path, name: str, *, overwrite: bool) -> Path:
    path = Path(directory) / name
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists", hint="Name another directory, or pass --overwrite.")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


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
        self._flows = _flows_of(spread)
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


def _flows_of(spread: SpreadGraph) -> dict[tuple[int | None, int, str, str, str, int], set[int]]:
    """Return the numbers of the flows that each call is on: one for each edge, and for each collective."""
    flows: dict[tuple[int | None, int, str, str, str, int], set[int]] = {}
    for number, edge in enumerate(spread.edges, len(spread.nodes) + 1):
        ends = [spread.nodes[edge.source], spread.nodes[edge.target]]
        passages = [node.id for node in ends if node.kind == PASSAGE]
        for node in ends:
            place = (node.rank, node.step, node.graph, node.op_type, node.op_name, node.occurrence)
            flows.setdefault(place, set()).update(passages or [number])
    return flows
