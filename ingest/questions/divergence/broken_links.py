"""Broken links: operators that read other bytes than those that the graph says were written for them.

It takes one rank. Parameters are not looked at, because they are dumped after their update; nor are operators
that write in place, whose inputs are dumped after the operator has overwritten them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from ingest.questions.question import Answer, Note, Part, Table, Texts
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.compare_bits import BitDifference, compare_bits
from ingest.reader.flow.operator_kinds import is_collective, is_parameter, writes_in_place
from ingest.reader.flow.step_flow import BY_GRAPH, FlowCall, FlowOperand, Passing, StepFlow, graph_source_of
from ingest.reader.plain import Plain
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
class BrokenLink(Plain):
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


@dataclass(frozen=True, slots=True, repr=False)
class BrokenLinks(Answer):
    """Inputs that hold other bytes than the outputs from which they come."""

    noun: ClassVar = "broken link"
    hidden: ClassVar = ("store",)

    store: str
    links: tuple[BrokenLink, ...]
    """By step, rank and order of execution."""
    compared: int
    """How many edges of graphs were compared; 0 if the dump does not have a graph."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def is_alarm(self) -> bool:
        """Whether a link is broken."""
        return bool(self.links)

    def table(self) -> Table[BrokenLink]:
        """Return a row for each link."""
        return Table(
            {
                "rank": lambda link: str(link.rank),
                "step": lambda link: str(link.step),
                "input": lambda link: link.input,
                "source": lambda link: link.output,
                "differs": lambda link: str(link.bits or ""),
            },
            self.links,
            self.noun,
            right=("rank", "step"),
        )

    def report(self) -> Iterator[Part]:
        """Yield each output whose readers hold other bytes than it, and which of the two is wrong."""
        if not self.compared:
            yield Note("the dump does not have a graph (.ir files), so no link was compared")
        elif not self.links:
            yield f"links hold: {counted(self.compared, 'edge')} of the graph"
        by_output = groupby(self.links, lambda link: (link.rank, link.step, link.output))
        yield Texts([_told([*links]) for _, links in by_output], "misread output")


def _told(links: Sequence[BrokenLink]) -> str:
    """Return what is wrong with an output: who read other bytes, and how these differ."""
    first, others = links[0], links[0].other_readers
    lines = [f"rank {first.rank}, step {first.step}: {first.output} was read with other bytes than it holds"]
    by_bits = [(bits, [*alike]) for bits, alike in groupby(links, lambda link: link.bits)]
    for bits, alike in by_bits:
        lines += [f"  reader   {link.input}" for link in alike] + [f"  differs  {bits}"] * (bits is not None)
    if others:
        holds = "holds" if others == 1 else "hold"
        lines.append(f"  so       {counted(others, 'other reader')} {holds} its bytes: the input is wrong")
    elif len(links) > 1 and len(by_bits) == 1 and by_bits[0][0] is not None:
        lines.append("  so       its readers agree: the output, or its dump, is wrong")
    else:
        lines.append("  so       no other reader has its bytes: the output, its dump or the input is wrong")
    return "\n".join(lines)


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
    return BrokenLinks(store.url, tuple(links), compared, (*snapshot.left_out, *damaged))


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
