"""Link the calls of one step: find out from which call each bad tensor came.

Tensors of equal content are treated as one tensor: the input of a call was written by the latest earlier call
with an output of the same bits.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ingest.questions.origin.calls import Call, CallOperand, RankTrace
from ingest.questions.origin.flow import Edge, Flow
from ingest.questions.origin.link_collectives import assume_sources, link_collectives
from ingest.reader.flow.content import Content
from ingest.reader.flow.operator_kinds import (
    is_collective,
    is_container,
    is_optimizer,
    is_parameter,
    writes_in_place,
)
from ingest.reader.flow.step_flow import latest_writer, row_of

#: By content, the calls of one rank that wrote it, with the output; in order of execution.
Writers: TypeAlias = dict[Content, list[tuple[Call, CallOperand]]]


def link_calls(step: int, traces: Mapping[int, RankTrace]) -> Flow:
    """Link the calls of one step by the bad tensors that passed between them.

    Takes time and memory in proportion to the number of calls with bad tensors.

    Args:
        step: the step.
        traces: the traces of the ranks to look at, by rank.
    """
    flow = Flow(step, traces)
    for trace in traces.values():
        _link_rank(flow, trace)
    link_collectives(flow)
    for trace in traces.values():
        _assume_edges(flow, trace)
    return flow


def _link_rank(flow: Flow, trace: RankTrace) -> None:
    """Link each bad tensor that a call of one rank read to the call that wrote it."""
    calls = [call for call in trace.calls if not is_parameter(call.op_type)]
    # Parameters are dumped with their final values. Without an order, these may be what was read.
    writers = _writers(calls if trace.is_ordered else trace.calls)
    for call in calls:
        for operand in call.bad_inputs:
            _link_input(flow, trace, call, operand, writers)
    for call in calls:
        if is_container(call.op_type):
            _link_container(flow, call, writers)
    for call in trace.calls:
        if is_parameter(call.op_type):
            _link_parameter(flow, trace, call, writers)


def _writers(calls: Iterable[Call]) -> Writers:
    writers: Writers = defaultdict(list)
    for call in calls:
        for output in call.bad_outputs:
            writers[output.content].append((call, output))
    for written in writers.values():
        written.sort(key=row_of)
    return writers


def _link_input(flow: Flow, trace: RankTrace, call: Call, operand: CallOperand, writers: Writers) -> None:
    written = latest_writer(call, operand, writers[operand.content], ordered=trace.is_ordered)
    if written is not None:
        flow.add_edge(Edge(written[0], call, operand))
    elif _is_own_write(call, operand):
        flow.own_writes[call].append(operand)
        insort(writers[operand.content], (call, operand), key=row_of)
    else:
        flow.unexplained[call].append(operand)


def _link_parameter(flow: Flow, trace: RankTrace, parameter: Call, writers: Writers) -> None:
    """Link the final value of a parameter to the call that wrote it."""
    for value in parameter.bad_outputs:
        written = latest_writer(parameter, value, writers[value.content], ordered=trace.is_ordered)
        if written is not None:
            flow.add_edge(Edge(written[0], parameter, value))


def _link_container(flow: Flow, module: Call, writers: Writers) -> None:
    """Link a module to the call inside it that wrote its output: the module is dumped around that call."""
    for output in module.bad_outputs:
        for writer, written in writers.get(output.content, ()):
            is_inside = written.row < output.row or _may_be_inside(flow, writer, module, output)
            if writer is not module and is_inside:
                flow.add_edge(Edge(writer, module, output))
                break


def _may_be_inside(flow: Flow, later: Call, module: Call, output: CallOperand) -> bool:
    """Return whether a call that was dumped after a module may be inside it: msProbe dumps either first.

    What follows from the module is not inside. Tensors that are NaN all over are alike, so what has no inputs
    that would tell, such as a gradient, counts as something that follows.
    """
    if is_container(later.op_type) or (output.is_plain and not later.inputs):
        return False
    return module not in flow.upstream([later])


def _is_own_write(call: Call, operand: CallOperand) -> bool:
    """Return whether an input was dumped after the call had overwritten it."""
    if is_optimizer(call.op_type):
        return bool(call.bad_outputs)
    is_output = any(output.content == operand.content for output in call.bad_outputs)
    return is_output and writes_in_place(call.op_type)


def _assume_source(flow: Flow, call: Call, earlier: Call | None) -> None:
    if is_collective(call.op_type) and call.bad_outputs:
        assume_sources(flow, call)
    elif earlier is not None:
        flow.add_edge(Edge(earlier, call, None, is_assumed=True))
        flow.unexplained.pop(call, None)


def _assume_edges(flow: Flow, trace: RankTrace) -> None:
    """Assume that something bad came from an earlier call if the dump cannot show what a call read.

    That is so for calls without any dumped input, for all calls if no outputs were dumped, and for
    collectives that may have overwritten their inputs. Nothing is assumed to come from a mask.
    """
    if not trace.is_ordered:
        return
    latest: Call | None = None
    for call in trace.calls:
        if is_parameter(call.op_type):
            continue
        if not flow.has_source(call):
            _assume_source(flow, call, latest if not call.inputs or not trace.has_outputs else None)
        if any(operand.holds != "-Inf" for operand in (*call.bad_inputs, *call.bad_outputs)):
            latest = call
