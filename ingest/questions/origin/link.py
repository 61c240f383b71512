"""Link the calls of one step: find out from which call each bad tensor came.

Tensors of equal content are treated as one tensor: the input of a call was written by the latest earlier call
with an output of the same bits. Collectives of one name are one only on ranks with equal outputs: there
may be several groups of ranks, and compilers number operators separately for each rank.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ingest.questions.origin.calls import Call, CallOperand, RankTrace
from ingest.questions.origin.flow import Crossing, Edge, Flow
from ingest.reader.calls import CallKey, Content
from ingest.reader.operator_kinds import (
    is_collective,
    is_container,
    is_optimizer,
    is_parameter,
    is_point_to_point,
    receives_as_is,
    writes_in_place,
)
from ingest.reader.step_flow import latest_writer, row_of

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


def link_collectives(flow: Flow) -> None:
    """Link bad outputs of collectives on each rank to bad inputs on the others."""
    calls = [call for call in flow.calls if is_collective(call.op_type)]
    givers: dict[CallKey, list[Call]] = defaultdict(list)
    takers: dict[CallKey, list[Call]] = defaultdict(list)
    for call in calls:
        if flow.has_bad_input(call):
            givers[call.key].append(call)
        if call.bad_outputs:
            takers[call.key].append(call)
    for key, sources in givers.items():
        if not is_point_to_point(key.op_type):
            _link_named(flow, key, sources, takers[key])
    _link_renamed(flow, calls, [call for sources in givers.values() for call in sources])


def _link_named(flow: Flow, key: CallKey, givers: Sequence[Call], takers: Sequence[Call]) -> None:
    """Link the calls of collectives of one name.

    If the outputs are the same on all ranks of a group, they tell the groups apart.
    """
    groups: dict[tuple[Content, ...], list[Call]] = defaultdict(list)
    for call in takers:
        groups[_outputs(flow, call)].append(call)
    for outputs, targets in groups.items():
        same_group = [call for call in givers if _outputs(flow, call) in (outputs, ())]
        sources = same_group or givers
        is_assumed = not same_group or (not outputs and not flow.order.are_names_unique)
        if len({call.rank for call in (*sources, *targets)}) > 1:
            flow.add_crossing(Crossing(key, tuple(sources), tuple(targets), is_assumed))


def _outputs(flow: Flow, call: Call) -> tuple[Content, ...]:
    return flow.traces[call.rank].collectives[call.key].outputs


def _link_renamed(flow: Flow, calls: Iterable[Call], givers: Sequence[Call]) -> None:
    """Link the calls of a collective that has different names on its ranks, by equal outputs."""
    by_output = _by_content({call: call.bad_outputs for call in givers})
    by_input = _by_content({call: call.bad_inputs for call in givers})
    for call in calls:
        if flow.has_bad_input(call) or flow.arriving.get(call):
            continue
        sources = [source for source in _with_content(call, by_output) if source.op_type == call.op_type]
        if not sources and receives_as_is(call.op_type):
            sources = _with_content(call, by_input)
        _link_to_others(flow, call, sources)


def _by_content(operands: Mapping[Call, Iterable[CallOperand]]) -> dict[Content, list[Call]]:
    calls: dict[Content, list[Call]] = defaultdict(list)
    for call, own in operands.items():
        for operand in own:
            calls[operand.content].append(call)
    return calls


def _with_content(call: Call, by_content: Mapping[Content, Sequence[Call]]) -> list[Call]:
    """Return the calls with a content that is also that of a bad output of this call."""
    return [other for output in call.bad_outputs for other in by_content.get(output.content, ())]


def _link_to_others(flow: Flow, call: Call, sources: Iterable[Call]) -> None:
    """Link a call to those of these calls that ran on other ranks, unless their equality proves nothing."""
    others = tuple(dict.fromkeys(source for source in sources if source.rank != call.rank))
    if not others:
        return
    is_plain = all(output.is_plain for output in call.bad_outputs)
    if is_plain and all(call.key in flow.traces[other.rank].collectives for other in others):
        flow.twins.add(call)
    else:
        flow.add_crossing(Crossing(call.key, others, (call,)))


def assume_sources(flow: Flow, call: Call) -> None:
    """Link a collective to the last bad call before it on each rank whose input is not known."""
    is_hidden = not call.inputs or call in flow.own_writes
    sources = tuple(_possible_sources(flow, call, include_own=is_hidden))
    own = next((source for source in sources if source.rank == call.rank), None)
    if own is not None:
        flow.add_edge(Edge(own, call, None, is_assumed=True))
    others = tuple(source for source in sources if source is not own)
    if others:
        flow.add_crossing(Crossing(call.key, others, (call,), is_assumed=True))


def _possible_sources(flow: Flow, call: Call, *, include_own: bool) -> Iterator[Call]:
    """Yield the last bad call before a collective on each rank that may have put something bad into it."""
    for rank, trace in flow.traces.items():
        begun = trace.collectives.get(call.key)
        if begun is None:
            continue
        if not (include_own if rank == call.rank else _has_hidden_input(flow, rank, call.key)):
            continue
        earlier = [
            other
            for other in trace.calls
            if other.row < begun.row and any(output.holds != "-Inf" for output in other.bad_outputs)
        ]
        if earlier:
            yield earlier[-1]


def _has_hidden_input(flow: Flow, rank: int, key: CallKey) -> bool:
    """Return whether a collective has a bad tensor on a rank, and its input was not dumped or overwritten."""
    call = next((call for call in flow.traces[rank].calls if call.key == key), None)
    return call is not None and (not call.inputs or call in flow.own_writes)
