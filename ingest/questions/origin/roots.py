"""Where something bad began in one step, and how much it matters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from ingest.questions.origin.calls import Call, CallKey, CallOperand, Content
from ingest.questions.origin.flow import Flow
from ingest.questions.origin.kinds import (
    checks_finite,
    is_collective,
    is_container,
    is_parameter,
    is_softmax,
    makes_masks,
    needs_two_inputs,
)

BORN, CAME_IN, THROUGH = "born", "came in", "came through a collective"


class Weight(IntEnum):
    """How much a beginning matters; the least is the worst."""

    REAL = 0
    """It became NaN, or reached an output of the network or a parameter."""
    ABSORBED = 1
    """Infinity that an operator made, and that others turned into finite numbers."""
    HARMLESS = 2
    """A mask, or infinity in the data, that others turned into finite numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Which calls of a step lead to what: found for all at once, for there may be many roots."""

    nan: set[Call]
    """Those that lead to NaN, or to what is not known to be infinity."""
    ends: set[Call]
    """Those that lead to an output that nobody read, or to a parameter."""
    checks: set[Call]
    """Those that lead to an operator that looks for NaN and Inf."""
    parameters: set[Call]
    """Those that lead to a parameter."""
    hard_births: set[Call]
    """Those that lead to a call that made NaN of infinity and is no softmax."""


@dataclass(frozen=True, eq=False)
class Root:
    """A call at which something bad began."""

    flow: Flow
    ahead: Ahead
    call: Call
    how: str
    """`born`: its inputs were clean. `came in`: what it read was bad and written by no call of the dump.
    `came through a collective`: its own input was clean, and what the other ranks put in is not known."""
    operand: CallOperand | None = None
    """The input that was bad, where it came in."""
    beside: tuple[Call, ...] = ()
    """Other calls that read the same bad tensor."""
    is_weak: bool = False
    """Whether something bad was there before on its rank, which it may follow from."""

    @property
    def starts(self) -> tuple[Call, ...]:
        """The calls where it can be seen first."""
        return (self.call, *self.beside)

    @cached_property
    def reached(self) -> list[Call]:
        """The calls where it began, and all that something bad came to from them."""
        return self.flow.reached(self.starts)

    @cached_property
    def holds(self) -> str:
        """What is wrong: `NaN`, `+Inf`, `-Inf`, `Inf`, or "" where that is not known."""
        bad = [self.operand] if self.operand is not None else self.call.bad_outputs
        kinds = {one.holds for one in bad}
        if "NaN" in kinds or len(kinds) == 1:
            return "NaN" if "NaN" in kinds else next(iter(kinds))
        return "Inf" if kinds else ""

    @property
    def row(self) -> int:
        """Where it stands in the order of execution of its rank."""
        return self.operand.row if self.operand is not None else self.call.row

    @cached_property
    def order(self) -> tuple[int, int, int, int]:
        """A sort key that contradicts no synchronisation point."""
        return (self.flow.step, self.flow.level_of(self.call), self.call.rank, self.row)

    @property
    def becomes_nan(self) -> bool:
        """Whether any tensor that it reached holds NaN, or something that is not known to be infinity."""
        if self.operand is not None and not _is_infinity(self.operand):
            return True
        return any(call in self.ahead.nan for call in self.starts)

    @property
    def has_end(self) -> bool:
        """Whether it reached an output that nobody read, or a parameter."""
        return any(call in self.ahead.ends for call in self.starts)

    @property
    def is_checked(self) -> bool:
        """Whether an operator that looks for NaN and Inf has read it, as in loss scaling."""
        return any(call in self.ahead.checks for call in self.starts)

    @property
    def reaches_parameters(self) -> bool:
        """Whether a parameter of the network holds it at the end of the step."""
        return any(call in self.ahead.parameters for call in self.starts)

    @cached_property
    def weight(self) -> Weight:
        """How much it matters."""
        if self.becomes_nan:
            return Weight.REAL
        look = self.flow.looks[self.call.rank]
        blind = not look.has_inputs or not look.has_outputs
        if self.holds == "-Inf" and (blind or is_parameter(self.call.op_type)):
            return Weight.HARMLESS
        if self.has_end or blind:
            return Weight.REAL
        if self.how == BORN and self.holds != "-Inf":
            return Weight.ABSORBED
        return Weight.HARMLESS

    @property
    def is_certain(self) -> bool:
        """Whether nothing speaks against it that the dump leaves open."""
        return not self.is_weak and not self.doubts()

    def doubts(self) -> list[str]:
        """Say what the dump leaves open about it, for a call that is named in the same breath."""
        look = self.flow.looks[self.call.rank]
        doubts = []
        if not look.is_ordered:
            doubts.append("the dump does not tell in which order operators ran: data flow alone decides")
        if self.how == BORN:
            doubts += self._doubts_of_birth()
        elif self.how == CAME_IN and not look.has_outputs:
            doubts.append("no outputs were dumped: the operator that wrote this input is not named")
        if self.call in self.flow.twins:
            doubts.append("collectives of other names on other ranks gave the same: it may be one of these")
        elif self.is_weak:
            doubts.append("something bad was there before on this rank: it may follow from that")
        return doubts

    def _doubts_of_birth(self) -> Iterator[str]:
        look, call = self.flow.looks[self.call.rank], self.call
        own = self.flow.own_writes.get(call, ())
        if not call.inputs:
            what = (
                "no inputs were dumped" if not look.has_inputs else f"no input of {call.op_name} was dumped"
            )
            yield f"{what}: that they were clean is not known"
        elif call.missing_slots:
            slots = ", ".join(map(str, call.missing_slots))
            yield f"input {slots} of {call.op_name} was not dumped; it may be empty, or a parameter"
        elif call.inputs == 1 and needs_two_inputs(call.op_type):
            yield f"only one input of {call.op_name} was dumped; a parameter may have been bad"
        if own:
            names = ", ".join(f"{one.io} {one.slot}" for one in own)
            yield (
                f"{names} of {call.op_name} holds it, too: the operator writes in place, so that may be what "
                "it wrote and not what it read"
            )
        if is_container(call.op_type):
            yield f"{call.op_name} is a module: an operator inside it that was not dumped may be the first"


def roots_of(flow: Flow) -> list[Root]:
    """Return where something bad began in a step; what follows from something else is not among it.

    In an order that contradicts no synchronisation point.
    """
    ahead = _ahead(flow)
    found = [*_born(flow, ahead), *_came_in(flow, ahead)]
    first: dict[int, int] = {}
    for root in found:
        if root.holds != "-Inf":
            first[root.call.rank] = min(first.get(root.call.rank, root.row), root.row)
    marked = [_weakened(root, first.get(root.call.rank, root.row)) for root in found]
    return sorted(marked, key=lambda root: root.order)


def _ahead(flow: Flow) -> Ahead:
    calls = list(flow.calls)
    births = (call for call in calls if _makes_nan(flow, call) and not is_softmax(call.op_type))
    return Ahead(
        nan=flow.upstream(call for call in calls if not all(map(_is_infinity, call.bad_outputs))),
        ends=flow.upstream(call for call in calls if flow.ends_of(call)),
        checks=flow.upstream(call for call in calls if checks_finite(call.op_type)),
        parameters=flow.upstream(call for call in calls if is_parameter(call.op_type)),
        hard_births=flow.upstream(births),
    )


def _is_infinity(operand: CallOperand) -> bool:
    return operand.holds.endswith("Inf")


def _weakened(root: Root, first: int) -> Root:
    """Mark a root that may follow from what was bad before it on its rank."""
    hidden = root.how != BORN or not root.call.inputs
    if root.call in root.flow.twins:
        return replace(root, is_weak=True)
    if first < root.row and hidden and root.flow.looks[root.call.rank].is_ordered:
        return replace(root, is_weak=True)
    return root


def _born(flow: Flow, ahead: Ahead) -> Iterator[Root]:
    for call in flow.calls:
        if not call.bad_outputs or is_parameter(call.op_type):
            continue
        if flow.is_followed(call) or flow.unexplained.get(call):
            continue
        # A sum of finite numbers may overflow; it is never NaN.
        from_elsewhere = (
            call in flow.own_writes or not call.inputs or not all(map(_is_infinity, call.bad_outputs))
        )
        yield Root(flow, ahead, call, THROUGH if is_collective(call.op_type) and from_elsewhere else BORN)


def _came_in(flow: Flow, ahead: Ahead) -> Iterator[Root]:
    """Yield each bad tensor that no call wrote, once: at the first call that read it."""
    readers: dict[tuple[int, Content], list[tuple[Call, CallOperand]]] = {}
    for call, operands in flow.unexplained.items():
        for operand in operands:
            readers.setdefault((call.rank, operand.content), []).append((call, operand))
    for reads in readers.values():
        reads.sort(key=lambda one: one[1].row)
        call, operand = reads[0]
        beside = tuple(dict.fromkeys(one for one, _ in reads[1:] if one is not call))
        yield Root(flow, ahead, call, CAME_IN, operand, beside)
    for call in flow.calls:
        # A parameter that no call of the dump has written, and none has read.
        if is_parameter(call.op_type) and not flow.is_followed(call):
            for operand in call.bad_outputs:
                if (call.rank, operand.content) not in readers:
                    yield Root(flow, ahead, call, CAME_IN, operand)


def parameter_of(flow: Flow, rank: int, operand: CallOperand) -> str | None:
    """Return the parameter or input of the network that a tensor is, where the dump has that by itself."""
    for call in flow.looks[rank].calls:
        if is_parameter(call.op_type) and any(one.content == operand.content for one in call.bad_outputs):
            return call.op_name
    return None


def _makes_nan(flow: Flow, call: Call) -> bool:
    """Whether a call gave NaN and read infinity, or nothing bad at all."""
    own = flow.own_writes.get(call, ())
    return (
        not all(map(_is_infinity, call.bad_outputs))
        and all(_is_infinity(one) for one in call.bad_inputs if one not in own)
        and not flow.arriving.get(call)
        and not any(edge.is_assumed for edge in flow.before.get(call, ()))
        and not is_parameter(call.op_type)
    )


def _is_mask(root: Root, harmless: set[CallKey]) -> bool:
    """Whether the -Inf of a root is a mask, although NaN came of it.

    It is, where it came in as data, where an operator made it that masks are made with, where the same
    operator has made a harmless one on another rank or in an earlier step, and where only softmax made NaN
    of it.
    """
    if root.holds != "-Inf":
        return False
    known = root.how == CAME_IN or makes_masks(root.call.op_type) or root.call.key in harmless
    return known or not any(call in root.ahead.hard_births for call in root.starts)


def masks_of(roots: Iterable[Root], harmless: set[CallKey]) -> list[Root]:
    """Return the roots whose -Inf is a mask of which NaN came."""
    return [root for root in roots if root.becomes_nan and _is_mask(root, harmless)]


def real_roots(roots: list[Root], harmless: set[CallKey]) -> list[Root]:
    """Return the roots that matter, weak ones last; instead of a mask, what made NaN of it."""
    masks = masks_of(roots, harmless)
    found = {root: None for root in roots if root.weight is Weight.REAL and root not in masks}
    if masks:
        flow, ahead = masks[0].flow, masks[0].ahead
        known = {root.call for root in found}
        for call in flow.reached(call for mask in masks for call in mask.starts):
            if _makes_nan(flow, call) and call not in known:
                found[Root(flow, ahead, call, BORN)] = None
    return sorted(found, key=lambda root: (root.is_weak, root.order))
