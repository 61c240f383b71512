"""How something bad spread from its root, and at which other operators it may have begun."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ingest.questions.origin.answer import OriginCollective, OriginLater, OriginOperator, OriginSpread
from ingest.questions.origin.calls import Call
from ingest.questions.origin.flow import Flow
from ingest.questions.origin.graph import graph_of
from ingest.questions.origin.link import link_calls
from ingest.questions.origin.roots import BORN, THROUGH, Root, Weight, real_roots, roots_of
from ingest.questions.origin.suspects import Suspects
from ingest.questions.origin.wording import operator_of
from ingest.reader.calls import CallKey, Content
from ingest.reader.operator_kinds import is_container, is_parameter

#: The lengths of the lists in an answer.
_NEXT, _COLLECTIVES, _ENDS, _ALTERNATIVES, _THROUGH = 20, 20, 10, 20, 10
#: Ranks of the next step that are read to find out how it came there.
_CARRIED_RANKS = 8


def spread_of(root: Root, suspects: Suspects, harmless: set[CallKey]) -> OriginSpread:
    """Trace how something bad spread in its own step and in later ones. Reads some ranks of the next step.

    Args:
        root: where it began.
        suspects: what may hold what is searched for.
        harmless: calls that made a harmless -Inf.
    """
    flow = root.flow
    operators = [call for call in root.reached if call is not root.call and not is_parameter(call.op_type)]
    near = [call for call in operators if call.rank == root.call.rank][:_NEXT]
    ends = [
        f"rank {call.rank} {call.name_of(output)}"
        for call in root.reached
        for output in flow.unread_outputs(call)
    ]
    return OriginSpread(
        next=tuple(operator_of(call, is_assumed=_is_assumed(flow, call)) for call in near),
        operators=len(operators),
        collectives=tuple(_collectives(root)[:_COLLECTIVES]),
        ranks=tuple(sorted({call.rank for call in root.reached})),
        ends=tuple(ends[:_ENDS]),
        steps=tuple(_later_steps(root, suspects, harmless)),
        graph=graph_of(root),
    )


def _is_assumed(flow: Flow, call: Call) -> bool:
    links = [*flow.before.get(call, ()), *flow.arriving.get(call, ())]
    return bool(links) and all(link.is_assumed for link in links)


def _collectives(root: Root) -> list[OriginCollective]:
    """Return the collectives through which it came to ranks whose own input was clean."""
    reached = dict.fromkeys(root.reached)
    merged: dict[tuple[CallKey, frozenset[int]], tuple[set[int], set[int], bool]] = {}
    flow = root.flow
    crossings = flow.crossings_of(reached)
    # In order; those without one, nearest first.
    for crossing in sorted(crossings, key=lambda each: min(map(flow.order.level_of, each.targets))):
        giving_ranks = {call.rank for call in crossing.sources}
        # One name may stand for several collectives: of other groups of ranks, or of each pair of them.
        key = crossing.key, frozenset(giving_ranks)
        sources, targets, is_assumed = merged.get(key, (set(), set(), True))
        sources |= {call.rank for call in crossing.sources if call in reached}
        targets |= {call.rank for call in crossing.targets} - giving_ranks
        if targets:
            merged[key] = (sources, targets, is_assumed and crossing.is_assumed)
    return [
        OriginCollective(key.op_type, key.op_name, tuple(sorted(sources)), tuple(sorted(targets)), is_assumed)
        for (key, _), (sources, targets, is_assumed) in merged.items()
    ]


def _later_steps(root: Root, suspects: Suspects, harmless: set[CallKey]) -> Iterator[OriginLater]:
    """Yield the later steps in which it is present; of the next step, also how it came there."""
    later = [step for step in suspects.snapshot.steps if step > root.call.step]
    if later:
        step = later[0]
        ranks, certain = suspects.ranks(step), suspects.certain_ranks(step)
        # Totals of commits do not show what fulfils a condition, nor NaN that statistics do not count.
        chosen = certain[:_CARRIED_RANKS] if certain == ranks else ranks
        flow = link_calls(step, suspects.trace(step, chosen))
        roots = roots_of(flow)
        holding = _ranks_that_matter(roots)
        suspects.mark_harmless(step, flow.traces.keys() - holding)
        if present := holding | (set(suspects.worrying_ranks(step)) - set(flow.traces)):
            yield OriginLater(step, tuple(sorted(present)), *_carried(root, roots, harmless))
    for step in later[1:]:
        if worrying := suspects.worrying_ranks(step):
            yield OriginLater(step, tuple(worrying))


def _ranks_that_matter(roots: Iterable[Root]) -> set[int]:
    """Return the ranks that hold more than harmless infinity."""
    return {call.rank for root in roots if root.weight is not Weight.HARMLESS for call in root.reached}


def _carried(
    root: Root, later: list[Root], harmless: set[CallKey]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tensors that carried it into the next step, and the operators that produced it again."""
    names = _names_of_bad(root.flow)
    through: dict[str, None] = {}
    again: dict[str, None] = {}
    for later_root in real_roots(later, harmless):
        call, operand = later_root.call, later_root.operand
        if operand is not None and (call.rank, operand.content) in names:
            through[names[call.rank, operand.content]] = None
        elif later_root.how == BORN and not later_root.is_weak and not later_root.doubts():
            again[f"{call.op_type}.{call.op_name}"] = None
    return tuple(through)[:_THROUGH], tuple(again)[:_THROUGH]


def _names_of_bad(flow: Flow) -> dict[tuple[int, Content], str]:
    """Return a name for every bad tensor of a step, by rank and content, preferably that of a parameter.

    All bad tensors may carry over: the first one may have gone nowhere, and another one into the parameters.
    """
    names: dict[tuple[int, Content], str] = {}
    for call in flow.calls:
        for output in call.bad_outputs:
            if is_parameter(call.op_type):
                names[call.rank, output.content] = call.op_name
            else:
                names.setdefault((call.rank, output.content), call.name_of(output))
        for operand in flow.own_writes.get(call, ()):
            names.setdefault((call.rank, operand.content), call.name_of(operand))
    return names


def alternatives_to(root: Root, others: Sequence[Root], *, is_condition: bool) -> tuple[OriginOperator, ...]:
    """Return the operators of the other roots that do not follow from a root, with the reason.

    Args:
        root: the root that the answer names.
        others: the other roots of its step.
        is_condition: whether a condition was searched for, and not NaN or Inf.
    """
    reached = set(root.reached)
    rows_after = root.flow.order.rows_after(root.call)
    alternatives = []
    for other in others:
        if other.call in reached or other.call is root.call:
            continue
        what = "it" if is_condition else other.holds or "NaN or Inf"
        began = "came through it" if other.how == THROUGH else "was born in it"
        if other.operand is not None:
            began = f"came in with {other.operand.io} {other.operand.slot}"
        reason = _relation(root, other, rows_after)
        alternatives.append(operator_of(other.call, f"{what} {began}; {reason}"))
    return tuple(alternatives[:_ALTERNATIVES])


def _relation(root: Root, other: Root, rows_after: dict[int, int]) -> str:
    """Return the possible relation of another root to a root."""
    call = other.call
    if call in root.flow.twins:
        return "a collective of another name on another rank gave the same: it may follow from that"
    if is_container(call.op_type) and root.call.op_name.startswith(f"{call.op_name}."):
        return "the first is inside it"
    if other.is_weak:
        return "may follow from what was bad before it"
    if call.rank == root.call.rank:
        return "later on the same rank; does not follow from the first as far as the dump shows"
    if call.row > rows_after.get(call.rank, call.row):
        return "on another rank, after a later collective; does not follow from the first"
    return "on another rank, and no collective between them tells which was first"
