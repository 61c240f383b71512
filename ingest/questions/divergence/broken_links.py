"""Broken links: operators that read other bytes than those that the graph says were written for them.

It takes one rank. Parameters are not looked at, because they are dumped after their update; nor are operators
that write in place, whose inputs are dumped after the operator has overwritten them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ingest.reader import notebook
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.compare_bits import BitDifference, compare_bits
from ingest.reader.flow.operator_kinds import is_collective, is_parameter, writes_in_place
from ingest.reader.flow.step_flow import BY_GRAPH, FlowCall, FlowOperand, Passing, StepFlow, graph_source_of
from ingest.reader.snapshot import LeftOut, take_snapshot
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.rules.names import fits

#: Links of which elements are read.
_READ = 20


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """An input that holds other bytes than the output from which the graph says it comes."""

    rank: int
    step: int
    output: str
    """The name of the tensor that was written."""
    input: str
    """The name of the tensor that was read."""
    other_readers: int
    """How many other inputs hold the bytes of the output: if there are any, the input is wrong and not the
    dump of the output."""
    bits: BitDifference | None = None
    """Which elements and bits differ, of the output against the input; None if they are not in the store."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        rest = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**rest, "bits": None if self.bits is None else self.bits.to_dict()}


@dataclass(frozen=True, slots=True)
class BrokenLinks:
    """Inputs that hold other bytes than the outputs from which they come."""

    links: tuple[BrokenLink, ...]
    """By step, rank and order of execution."""
    compared: int
    """How many edges of graphs were compared; 0 if the dump does not have a graph."""
    left_out: tuple[LeftOut, ...] = ()

    def __repr__(self) -> str:
        return f"<BrokenLinks {len(self.links)} of {counted(self.compared, 'edge')}>"

    def _repr_html_(self) -> str:
        columns = ("rank", "step", "input", "source", "differs")
        rows = ((link.rank, link.step, link.input, link.output, link.bits or "") for link in self.links)
        title = f"{counted(len(self.links), 'broken link')}; edges compared: {self.compared}"
        return notebook.table(title, columns, rows, total=len(self.links))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "links": [link.to_dict() for link in self.links],
            "compared": self.compared,
            "left_out": [left.to_dict() for left in self.left_out],
        }


def broken_links(
    store: Catalog,
    rank: Choice = None,
    step: Choice = None,
    *,
    name: str | None = None,
    include_partial: bool = False,
) -> BrokenLinks:
    """Find inputs that hold other bytes than the outputs from which they come, by the edges of the graph.

    Takes about 0.3 ms for each tensor. Memory: the flow of one step, see `flow_of`. Of the first 20 links,
    the elements are read.

    Args:
        store: the store.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        name: a glob for the names of the inputs, or a whole name.
        include_partial: also use steps with quarantined or missing files.

    Raises:
        UsageError: a rank or step is not in the store.
        DamagedStore: no step can be read.
    """
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    is_wanted = fits("*" if name is None else name)
    links: list[BrokenLink] = []
    compared = 0
    damaged: list[LeftOut] = []
    for number in snapshot.steps:
        for own_rank, opened in snapshot.of_step(number).items():
            try:
                flow = StepFlow(opened, graph_source_of(opened))
            except DamagedStore as exc:
                damaged.append(LeftOut.damaged(StepKey(own_rank, number), exc.message))
                continue
            compared += sum(_is_compared(flow, passing) for passing in flow.passings())
            for passing in _broken(flow):
                link = _link(opened, flow, passing)
                if not is_wanted(link.input):
                    continue
                links.append(replace(link, bits=_bits(opened, passing)) if len(links) < _READ else link)
            opened.forget_tables()
    return BrokenLinks(tuple(links), compared, (*snapshot.left_out, *damaged))


def _is_compared(flow: StepFlow, passing: Passing) -> bool:
    writer, reader = flow.call_of[passing.source], flow.call_of[passing.target]
    return "graph" in passing.by and not (is_parameter(writer.op_type) or is_collective(reader.op_type))


def _broken(flow: StepFlow) -> Iterator[Passing]:
    """Yield the tensors that the graph says have passed and whose bytes contradict it."""
    for passing in flow.passings():
        if passing.by != BY_GRAPH or not _is_compared(flow, passing):
            continue
        writer, reader = flow.call_of[passing.source], flow.call_of[passing.target]
        operand, output = flow.operands[passing.target], flow.operands[passing.source]
        if writes_in_place(writer.op_type) and not is_collective(writer.op_type):
            continue
        if any(written.content == operand.content for written in reader.outputs):
            continue  # the output took the memory of the input
        right = _renumbered(flow, writer, reader, output, operand)
        if right is not None:
            yield passing._replace(source=right.row)


def _renumbered(
    flow: StepFlow, writer: FlowCall, reader: FlowCall, output: FlowOperand, operand: FlowOperand
) -> FlowOperand | None:
    """Return the output from which an input comes; None if that is not certain.

    MindSpore may number operators of one type differently in the graph and in the names of files. If another
    operator of the type of the reader has the bytes of the output, the graph means that one. Then the only
    output like it that nobody read is the right one.
    """
    if (output.shape, output.content[0]) != (operand.shape, operand.content[0]):
        return None
    if not _is_read_by_alike(flow, output, reader, operand):
        return output
    alike = [
        other
        for call in flow.calls.values()
        if call.op_type == writer.op_type
        for other in call.outputs
        if (other.slot, other.shape) == (output.slot, output.shape)
        and not flow.consumers_by_content(other.row)
    ]
    return alike[0] if len(alike) == 1 else None


def _is_read_by_alike(flow: StepFlow, output: FlowOperand, reader: FlowCall, operand: FlowOperand) -> bool:
    for passing in flow.consumers_by_content(output.row):
        other, read = flow.call_of[passing.target], flow.operands[passing.target]
        if other is not reader and (other.op_type, read.slot) == (reader.op_type, operand.slot):
            return True
    return False


def _link(step: Step, flow: StepFlow, passing: Passing) -> BrokenLink:
    output, read = Tensor(step, passing.source), Tensor(step, passing.target)
    others = len(flow.consumers_by_content(passing.source))
    return BrokenLink(output.rank, int(output.step or 0), output.name, read.name, others)


def _bits(step: Step, passing: Passing) -> BitDifference | None:
    return compare_bits(Tensor(step, passing.source), Tensor(step, passing.target))
