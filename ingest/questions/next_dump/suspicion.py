"""What may be worth dumping next, and how much: operators with their worth, steps and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ingest.questions.divergence.result import NOTHING_COMPARED, BrokenOperator, Divergence, Odd
from ingest.questions.origin.answer import OriginAnswer, OriginOperator
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.context import context_of
from ingest.reader.operator_kinds import is_parameter
from ingest.reader.step_flow import FlowCall, StepFlow, flow_of
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted
from workers.errors import UsageError

#: Operators of at least this worth are dumped without a budget. With one, those below it, too, if they fit.
WORTH_DUMPING = 0.4
_CULPRIT, _SOURCE, _ALTERNATIVE, _READER = 1.0, 0.8, 0.5, 0.3
#: By how much an operator is worth less than the one that reads what it writes.
_FADING = 0.45
#: How far an operator may be from the culprit, in operators.
_MAX_DISTANCE = 6
_MAX_ALTERNATIVES = 5
_Named = TypeVar("_Named", bound=OriginOperator)


class OperatorId(NamedTuple):
    """An operator, whichever of its calls."""

    net: str
    graph: str
    op_type: str
    op_name: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """An operator that is worth dumping."""

    operator: OperatorId
    worth: float
    """From 1, for the operator at which it began, down to 0."""
    why: str


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is suspected: operators, steps and ranks that are worth dumping."""

    suspects: tuple[Suspect, ...]
    """The most important one first."""
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    about: str
    """What it is about, in one sentence."""
    notes: tuple[str, ...] = ()

    def without_parameters(self) -> Suspicion:
        """Return it without parameters, for a system that cannot dump one alone.

        Raises:
            UsageError: nothing else is left.
        """
        suspects = tuple(suspect for suspect in self.suspects if not is_parameter(suspect.operator.op_type))
        if len(suspects) == len(self.suspects):
            return self
        if not suspects:
            raise UsageError(
                f"{self.suspects[0].operator.op_name} is a parameter, dumped only with the whole graph",
                hint="Name an operator that reads or writes it with --for tensor.",
            )
        note = "Parameters are not dumped by themselves, but as inputs and outputs of operators."
        return replace(self, suspects=suspects, notes=(*self.notes, note))


def suspicion_of_origin(store: Catalog, answer: OriginAnswer) -> Suspicion:
    """Choose the operator at which something bad began, what wrote its inputs, and other candidates.

    Raises:
        UsageError: nothing bad was found.
    """
    if answer.rank is None or answer.step is None:
        raise UsageError(
            f"{store.url}: nothing went wrong in it, so nothing is suspected{_but(answer.left_out)}",
            hint="Ask for what you want to see: --for tensor NAME, or --for divergence.",
        )
    flow = flow_of(store.step(answer.rank, answer.step))
    place = f"rank {answer.rank}, step {answer.step}"
    notes = _notes_on(answer.left_out)
    suspects = list(_suspects_of_origin(flow, answer, f"{answer.what} {_began(answer)} it on {place}", notes))
    if not suspects:
        raise UsageError(f"{store.url}: no operator on {place} can be named", hint="Dump all of the step.")
    ranks = {answer.rank, *(operator.rank for operator in answer.alternatives[:_MAX_ALTERNATIVES])}
    if answer.how == "came through a collective":
        ranks |= set(store.ranks)
        notes.append("It came from another rank, which the dump does not have: all ranks are chosen.")
    about = f"{answer.what} on {place}, in {answer.op_type or 'an operator that was not dumped'}"
    return Suspicion(
        _ranked(suspects), with_step_before(answer.step), tuple(sorted(ranks)), about, tuple(notes)
    )


def _suspects_of_origin(
    flow: StepFlow, answer: OriginAnswer, why: str, notes: list[str]
) -> Iterator[Suspect]:
    """Yield the suspects of an origin; add to `notes` what the user should know of it."""
    culprits = _calls(flow, answer)
    if not culprits:  # it came from an operator that was not dumped: those that it reached first were
        culprits = [call for reached in answer.spread.next[:1] for call in _calls(flow, reached)]
        notes.append("The operator at which it began was not dumped: those that it reached first are chosen.")
    if answer.came_in is not None:
        for writer in _writers_of_parameters(flow, culprits):
            yield Suspect(_id_of(writer.key), _SOURCE, "it writes the parameter")
    yield from _with_sources(flow, culprits, why)
    for operator in _named(answer.alternatives):
        yield Suspect(_id_of(operator), _ALTERNATIVE, operator.reason)
    for operator in _named(answer.spread.next):
        yield Suspect(_id_of(operator), _READER, "it reads a bad tensor")


def _named(operators: Sequence[_Named]) -> list[_Named]:
    """Return the first of these operators, without those that have no name."""
    return [operator for operator in operators[:_MAX_ALTERNATIVES] if operator.op_name]


def _nothing_differs(store: Catalog, answer: Divergence) -> UsageError:
    what = "no tensor differs between replicas" if answer.groups else NOTHING_COMPARED
    return UsageError(
        f"{store.url}: {what}, so nothing is suspected{_but(answer.left_out)}",
        hint="Ask for what you want to see: --for tensor NAME, or --for origin.",
    )


def suspicion_of_divergence(store: Catalog, answer: Divergence) -> Suspicion:
    """Choose the operators that gave other outputs for equal inputs, and the first tensors that differ.

    Raises:
        UsageError: no tensor differs between replicas, or nothing could be compared.
    """
    culprits: list[BrokenOperator | Odd] = [*answer.broken, *answer.odd]
    if not culprits:
        raise _nothing_differs(store, answer)
    first = min(map(_first_step, culprits))
    culprits = [culprit for culprit in culprits if _first_step(culprit) == first]
    suspects = list(chain.from_iterable(_of_culprit(store, culprit) for culprit in culprits))
    differences = (difference for difference in answer.differences if difference.first_step == first)
    suspects += (
        Suspect(_id_of(difference.key), _READER, f"{difference.name} differs")
        for difference in islice(differences, max(4 * _MAX_ALTERNATIVES - len(suspects), 0))
    )
    ranks = {rank for culprit in culprits for rank in (*culprit.ranks, *culprit.others[:1])}
    about = f"replicas that disagree from step {first} on"
    notes = tuple(_notes_on(answer.left_out))
    return Suspicion(_ranked(suspects), with_step_before(first), tuple(sorted(ranks)), about, notes)


def _first_step(culprit: BrokenOperator | Odd) -> int:
    return culprit.step if isinstance(culprit, BrokenOperator) else culprit.first_step


def _of_culprit(store: Catalog, culprit: BrokenOperator | Odd) -> Iterator[Suspect]:
    """Yield a broken operator; or that of the tensor with which ranks differ first, and its sources."""
    if isinstance(culprit, BrokenOperator):
        yield Suspect(_id_of(culprit), _CULPRIT, "equal inputs and unequal outputs")
        return
    flow = flow_of(store.step(culprit.ranks[0], culprit.first_step))
    yield from _with_sources(flow, _calls(flow, culprit.first.key), f"{culprit.first.name} differs first")


def _calls_with(flow: StepFlow, tensors: Iterable[Tensor]) -> list[FlowCall]:
    """Return the calls of the operators that have these tensors, each once."""
    return list({id(call): call for tensor in tensors for call in _calls(flow, tensor)}.values())


def suspicion_of_names(store: Catalog, names: Iterable[str], rank: Any = None, step: Any = None) -> Suspicion:
    """Choose the operators of tensors that the user names, with what wrote their inputs.

    Raises:
        UsageError: a name fits no tensor.
    """
    suspects: list[Suspect] = []
    steps: set[int] = set()
    ranks: set[int] = set()
    damages: dict[str, None] = {}
    patterns = list(names)
    for pattern in patterns:
        found: list[Damage] = []
        tensors = [
            tensor
            for tensor in store.tensors(pattern, rank=rank, step=step, damages=found)
            if tensor.step is not None
        ]
        damages |= dict.fromkeys(map(str, found))
        if not tensors:
            raise UsageError(
                f"{store.url}: no tensor is called {pattern!r}{_but([*damages])}",
                hint="`dump-ingest find STORE --name PATTERN` lists names; a pattern may have * and ?.",
            )
        last = max(tensors, key=lambda tensor: (tensor.step or 0, -tensor.rank))
        chosen = [tensor for tensor in tensors if tensor.step == last.step]
        flow = flow_of(store.step(last.rank, last.step))
        suspects += _with_sources(flow, _calls_with(flow, chosen), f"its name fits {pattern}")
        ranks |= {tensor.rank for tensor in chosen}
        steps |= set(with_step_before(last.step or 0))
    about = f"tensors called {', '.join(patterns)}"
    notes = tuple(_notes_on([*damages]))
    return Suspicion(_ranked(suspects), tuple(sorted(steps)), tuple(sorted(ranks)), about, notes)


def _but(left_out: Sequence[object]) -> str:
    """Return the end of a message about a store of which these steps could not be examined."""
    more = f", and {counted(len(left_out) - 1, 'more step')}" if len(left_out) > 1 else ""
    return f"; left out: {left_out[0]}{more}" if left_out else ""


def _notes_on(left_out: Sequence[object]) -> list[str]:
    """Return a note on the steps that could not be examined; none if all could."""
    return [f"Not all steps could be examined{_but(left_out)}."] if left_out else []


def with_step_before(step: int) -> tuple[int, ...]:
    """Return a step, and the one before it if there is one."""
    return (step - 1, step) if step > 0 else (step,)


def _began(answer: OriginAnswer) -> str:
    return {"born": "was born in", "recorded": "was recorded in"}.get(answer.how or "", "came through")


def _calls(flow: StepFlow, part: Any) -> list[FlowCall]:
    """Return the calls of the operator of a tensor, a call or an answer; none if that is not known."""
    wanted = (part.graph or "", part.op_type or "", part.op_name or "")
    return [call for key, call in flow.calls.items() if (key.graph, key.op_type, key.op_name) == wanted]


def _with_sources(flow: StepFlow, culprits: list[FlowCall], why: str) -> Iterator[Suspect]:
    """Yield calls, and those that wrote what they read, from near to far: the farther, the less worth."""
    seen = {call.key for call in culprits}
    worth = _SOURCE
    for call in culprits:
        yield Suspect(_id_of(call.key), _CULPRIT, why)
    for _ in range(_MAX_DISTANCE):
        readers, culprits = culprits, []
        for reader in readers:
            for source in _sources(flow, reader):
                if source.key not in seen:
                    seen.add(source.key)
                    culprits.append(source)
                    yield Suspect(_id_of(source.key), worth, f"it writes an input of {reader.op_type}")
        worth *= _FADING


def _sources(flow: StepFlow, reader: FlowCall) -> Iterator[FlowCall]:
    for operand in reader.inputs:
        passing = flow.producer(operand.row)
        if passing is None:
            continue
        source = flow.call_of[passing.source]
        if not is_parameter(source.op_type):
            yield source


def _writers_of_parameters(flow: StepFlow, readers: list[FlowCall]) -> Iterator[FlowCall]:
    """Yield the calls that wrote the parameters that calls read, perhaps in the step before."""
    for reader in readers:
        for operand in reader.inputs:
            read = flow.producer(operand.row)
            if read is not None and is_parameter(flow.call_of[read.source].op_type):
                written = flow.producer(read.source)
                if written is not None:
                    yield flow.call_of[written.source]


def _id_of(part: Any) -> OperatorId:
    """Return the operator of a tensor or a call; an answer may not know the network of it."""
    return OperatorId(getattr(part, "net", ""), part.graph, part.op_type, part.op_name)


def _ranked(suspects: Iterable[Suspect]) -> tuple[Suspect, ...]:
    """Return each operator once, with its highest worth, the highest first."""
    best: dict[tuple[str, str, str], Suspect] = {}
    for suspect in suspects:
        name = suspect.operator[1:]
        known = best.get(name)
        if known is None or known.worth < suspect.worth:
            best[name] = suspect
    return tuple(sorted(best.values(), key=lambda suspect: -suspect.worth))


#: By the name of the call of a module, the calls inside of it.
InnerCalls: TypeAlias = dict[str, set[OperatorId]]
_MODULES = ("Module.", "Cell.")


def inner_calls(store: Catalog, key: tuple[int, int]) -> InnerCalls:
    """Return the calls inside of each module in a step (rank, step), as `construct.json` tells them."""
    step, context = store.step(*key), context_of(store, key[0])
    tables = step.tables
    columns = (tables.label(name).tolist() for name in ("net", "graph", "op_type", "op_name"))
    first_rows: dict[OperatorId, int] = {}
    for row, names in enumerate(zip(*columns, strict=True)):
        first_rows.setdefault(OperatorId(*map(str, names)), row)
    inner: InnerCalls = {}
    for operator, row in first_rows.items():
        for module in context.enclosing(Tensor(step, row)) if operator.op_name else ():
            inner.setdefault(module, set()).add(operator)
    return inner


def without_wrappers(suspicion: Suspicion, inner: InnerCalls) -> Suspicion:
    """Return it without the modules around chosen calls: these calls tell what the module read and wrote.

    With the module, msProbe would dump everything else inside of it, too.
    """
    names = {suspect.operator.op_name for suspect in suspicion.suspects}
    around = {module for module, calls in inner.items() if any(call.op_name in names for call in calls)}
    return replace(
        suspicion,
        suspects=tuple(suspect for suspect in suspicion.suspects if suspect.operator.op_name not in around),
    )


def dumped_with(suspicion: Suspicion, inner: InnerCalls) -> Mapping[str, set[OperatorId]]:
    """Return the calls that are dumped with each chosen module; none if only modules are chosen."""
    is_mixed = any(not suspect.operator.op_name.startswith(_MODULES) for suspect in suspicion.suspects)
    return inner if is_mixed else {}
