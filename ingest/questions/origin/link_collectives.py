"""Link the calls of collectives on different ranks.

Collectives of one name are treated as one only on ranks with equal outputs: there may be several groups of
ranks, and compilers number operators separately for each rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ingest.questions.origin.calls import Call, CallOperand
from ingest.questions.origin.flow import Crossing, Edge, Flow
from ingest.reader.flow.content import CallKey, Content
from ingest.reader.flow.operator_kinds import is_collective, is_point_to_point, receives_as_is


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
