"""Where something bad began in one step, and how much it matters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from ingest.reader.origin.calls import Call, CallKey, Operand
from ingest.reader.origin.flow import Edge, Flow
from ingest.reader.origin.kinds import (
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


@dataclass(frozen=True)
class Root:
    """A call at which something bad began."""

    flow: Flow
    call: Call
    how: str
    """`born`: its inputs were clean. `came in`: what it read was bad and written by no call of the dump.
    `came through a collective`: its own input was clean, and what the other ranks put in is not known."""
    operand: Operand | None = None
    """The input that was bad, where it came in."""
    beside: tuple[Call, ...] = ()
    """Other calls that read the same bad tensor."""
    is_weak: bool = False
    """Whether something bad was there before on its rank, which it may follow from."""

    @cached_property
    def reached(self) -> list[Call]:
        """The call, and all that something bad came to from it."""
        return self.flow.reached((self.call, *self.beside))

    @cached_property
    def holds(self) -> str:
        """What is wrong: `NaN`, `+Inf`, `-Inf`, `Inf`, or "" where that is not known."""
        bad = [self.operand] if self.operand is not None else self.call.bad_outputs
        kinds = {one.holds for one in bad}
        if "NaN" in kinds or len(kinds) == 1:
            return "NaN" if "NaN" in kinds else next(iter(kinds))
        return "Inf" if kinds else ""

    @cached_property
    def order(self) -> tuple[int, int, int, int]:
        """A sort key that contradicts no synchronisation point."""
        row = self.operand.row if self.operand is not None else self.call.row
        return (self.flow.step, self.flow.level_of(self.call), self.call.rank, row)

    @cached_property
    def becomes_nan(self) -> bool:
        """Whether any tensor that it reached holds NaN, or something that is not known to be infinity."""
        own = [] if self.operand is None else [self.operand]
        tensors = [*own, *(one for call in self.reached for one in call.bad_outputs)]
        return any(not one.holds.endswith("Inf") for one in tensors)

    @cached_property
    def ends(self) -> list[tuple[Call, Operand]]:
        """Bad outputs that nobody read: parameters, and outputs of the network as far as the dump tells."""
        return [
            (call, output)
            for call in self.reached
            for output in call.bad_outputs
            if is_parameter(call.op_type) or not self.flow.is_read(call, output)
        ]

    @cached_property
    def is_checked(self) -> bool:
        """Whether an operator that looks for NaN and Inf has read it, as in loss scaling."""
        return any(checks_finite(call.op_type) for call in self.reached)

    @cached_property
    def reaches_parameters(self) -> bool:
        """Whether a parameter of the network holds it at the end of the step."""
        return any(is_parameter(call.op_type) for call in self.reached)

    @cached_property
    def weight(self) -> Weight:
        """How much it matters."""
        if self.becomes_nan:
            return Weight.REAL
        look = self.flow.looks[self.call.rank]
        blind = not look.has_inputs or not look.has_outputs
        if self.holds == "-Inf" and (blind or is_parameter(self.call.op_type)):
            return Weight.HARMLESS
        if self.ends or blind:
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
        look, call = self.flow.looks[self.call.rank], self.call
        doubts = []
        if not look.is_ordered:
            doubts.append("the dump does not tell in which order operators ran: data flow alone decides")
        if self.how == BORN:
            doubts += self._doubts_of_birth()
        elif self.how == CAME_IN and not look.has_outputs:
            doubts.append(
                "no outputs were dumped: the operator that wrote this input is not named"
                + (
                    f"; the one that was dumped before is {before}"
                    if (before := look.previous.get(call.key))
                    else ""
                )
            )
        if self.is_weak:
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
        elif len(call.inputs) == 1 and needs_two_inputs(call.op_type):
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
    """Return where something bad began in a step; those that others follow from are not among them.

    In an order that contradicts no synchronisation point.
    """
    found = [*_born(flow), *_came_in(flow)]
    by_rank: dict[int, int] = {}
    for root in found:
        if root.holds != "-Inf":
            row = root.operand.row if root.operand is not None else root.call.row
            by_rank[root.call.rank] = min(by_rank.get(root.call.rank, row), row)
    marked = [_weakened(root, by_rank.get(root.call.rank)) for root in found]
    return sorted(marked, key=lambda root: root.order)


def _weakened(root: Root, first: int | None) -> Root:
    """Mark a root that may follow from what was bad before it on its rank."""
    own = root.operand.row if root.operand is not None else root.call.row
    hidden = root.how != BORN or not root.call.inputs
    if first is not None and first < own and hidden and root.flow.looks[root.call.rank].is_ordered:
        return replace(root, is_weak=True)
    return root


def _born(flow: Flow) -> Iterator[Root]:
    for call in flow.calls:
        if not call.bad_outputs or is_parameter(call.op_type):
            continue
        if flow.before.get(call) or flow.unexplained.get(call):
            continue
        own = flow.own_writes.get(call, ())
        if is_collective(call.op_type) and (own or not call.inputs):
            yield Root(flow, call, THROUGH)
        else:
            yield Root(flow, call, BORN)


def _came_in(flow: Flow) -> Iterator[Root]:
    """Yield each bad tensor that no call wrote, once: at the first call that read it."""
    readers: dict[tuple[int, tuple[object, ...]], list[tuple[Call, Operand]]] = {}
    for call, operands in flow.unexplained.items():
        for operand in operands:
            readers.setdefault((call.rank, operand.content), []).append((call, operand))
    for reads in readers.values():
        reads.sort(key=lambda one: one[1].row)
        call, operand = reads[0]
        beside = tuple(dict.fromkeys(one for one, _ in reads[1:] if one is not call))
        yield Root(flow, call, CAME_IN, operand, beside)
    for look in flow.looks.values():
        seen = {operand.content for _, operand in (r for reads in readers.values() for r in reads)}
        for call in look.calls:
            # A parameter that no call of the dump has written, and none has read.
            if is_parameter(call.op_type) and not flow.before.get(call):
                for operand in call.bad_outputs:
                    if operand.content not in seen:
                        yield Root(flow, call, CAME_IN, operand)


def parameter_of(flow: Flow, rank: int, operand: Operand) -> str | None:
    """Return the parameter or input of the network that a tensor is, where the dump has that by itself."""
    for call in flow.looks[rank].calls:
        if is_parameter(call.op_type) and any(one.content == operand.content for one in call.bad_outputs):
            return call.op_name
    return None


def nan_births(flow: Flow, calls: Iterable[Call]) -> list[Root]:
    """Return the calls among these that gave NaN and read none, in order."""
    found = []
    for call in calls:
        gave = any(one.holds not in ("+Inf", "-Inf", "Inf") for one in call.bad_outputs)
        own = flow.own_writes.get(call, ())
        read = any(not one.holds.endswith("Inf") for one in call.bad_inputs if one not in own)
        through = any(edge.crosses or edge.is_assumed for edge in flow.before.get(call, ()))
        if gave and not read and not through and not is_parameter(call.op_type):
            found.append(Root(flow, call, BORN))
    return sorted(found, key=lambda root: root.order)


def is_mask(root: Root, harmless: set[CallKey]) -> bool:
    """Whether the -Inf of a root is a mask, although NaN came of it.

    It is, where it came in as data, where an operator made it that masks are made with, where the same
    operator has made such a harmless one on another rank or in an earlier step, and where only softmax made
    NaN of it.
    """
    if root.holds != "-Inf" or any(one.holds == "+Inf" for one in root.call.bad_outputs):
        return False
    if root.how == CAME_IN or makes_masks(root.call.op_type) or root.call.key in harmless:
        return True
    births = nan_births(root.flow, root.reached)
    return bool(births) and all(is_softmax(birth.call.op_type) for birth in births)


def real_roots(roots: list[Root], harmless: set[CallKey]) -> list[Root]:
    """Return the roots that matter, weak ones last; instead of a mask, what made NaN of it."""
    found: dict[Call, Root] = {}
    for root in roots:
        if root.weight is not Weight.REAL:
            continue
        if root.becomes_nan and is_mask(root, harmless):
            for birth in nan_births(root.flow, root.reached):
                found.setdefault(birth.call, birth)
        else:
            found.setdefault(root.call, root)
    return sorted(found.values(), key=lambda root: (root.is_weak, root.order))


def crossings(calls: Iterable[Call], flow: Flow) -> list[Edge]:
    """Return how something bad went from rank to rank among these calls."""
    chosen = set(calls)
    return [
        edge for call in chosen for edge in flow.after.get(call, ()) if edge.crosses and edge.target in chosen
    ]
