"""What to dump next: the configuration of a small dump that answers what the one in the store cannot.

It names the operators that are suspected, each with its worth, the steps and ranks, and what the dump costs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ingest.dump_configs.model import DumpRequest, RequestedOperator, WrittenConfig, flatten
from ingest.dump_configs.writing import WITHOUT_PARAMETERS, system_of, write_config
from ingest.questions.divergence.find import divergence
from ingest.questions.divergence.result import NOTHING_COMPARED, BrokenOperator, Divergence, Odd
from ingest.questions.dump_cost import OperatorId, Sizes, readable_step
from ingest.questions.origin.answer import OriginAnswer, OriginOperator
from ingest.questions.origin.search import origin
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import as_names, named_ranges
from ingest.reader.context import context_of
from ingest.reader.context.files import configuration_of
from ingest.reader.operator_kinds import is_input, is_output, is_parameter, keys_of, tensor_rows
from ingest.reader.snapshot import refuse_url
from ingest.reader.step import Step
from ingest.reader.step_flow import FlowCall, StepFlow, flow_of
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted, html_block, printable
from ingest.units import human_bytes
from workers.errors import UsageError
from workers.model import StepKey, grouped
from workers.store.model import RowKind

#: Operators of at least this worth are dumped without a budget. With one, those below it, too, if they fit.
WORTH_DUMPING = 0.4
_CULPRIT, _SOURCE, _ALTERNATIVE, _READER = 1.0, 0.8, 0.5, 0.3
#: By how much an operator is worth less than the one that reads what it writes.
_FADING = 0.45
#: How far an operator may be from the culprit, in operators.
_MAX_DISTANCE = 6
_MAX_ALTERNATIVES = 5
_Named = TypeVar("_Named", bound=OriginOperator)


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
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    about: str
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
        parameters = [row for row in _rows_read(flow, culprits) if is_parameter(flow.call_of[row].op_type)]
        for written in filter(None, map(flow.producer, parameters)):  # perhaps in the step before
            yield Suspect(_id_of(flow.call_of[written.source].key), _SOURCE, "it writes the parameter")
    yield from _with_sources(flow, culprits, why)
    for operator in _named(answer.alternatives):
        yield Suspect(_id_of(operator), _ALTERNATIVE, operator.reason)
    for operator in _named(answer.spread.next):
        yield Suspect(_id_of(operator), _READER, "it reads a bad tensor")


def _named(operators: Sequence[_Named]) -> list[_Named]:
    return [operator for operator in operators[:_MAX_ALTERNATIVES] if operator.op_name]


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


def _nothing_differs(store: Catalog, answer: Divergence) -> UsageError:
    what = "no tensor differs between replicas" if answer.groups else NOTHING_COMPARED
    return UsageError(
        f"{store.url}: {what}, so nothing is suspected{_but(answer.left_out)}",
        hint="Ask for what you want to see: --for tensor NAME, or --for origin.",
    )


def _first_step(culprit: BrokenOperator | Odd) -> int:
    return culprit.step if isinstance(culprit, BrokenOperator) else culprit.first_step


def _of_culprit(store: Catalog, culprit: BrokenOperator | Odd) -> Iterator[Suspect]:
    """Yield a broken operator; or that of the tensor with which ranks differ first, and its sources."""
    if isinstance(culprit, BrokenOperator):
        yield Suspect(_id_of(culprit), _CULPRIT, "equal inputs and unequal outputs")
        return
    flow = flow_of(store.step(culprit.ranks[0], culprit.first_step))
    yield from _with_sources(flow, _calls(flow, culprit.first.key), f"{culprit.first.name} differs first")


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
        suspects += _with_sources(flow, _calls_of(flow, chosen), f"its name fits {pattern}")
        ranks |= {tensor.rank for tensor in chosen}
        steps |= set(with_step_before(last.step or 0))
    about = f"tensors called {', '.join(patterns)}"
    notes = tuple(_notes_on([*damages]))
    return Suspicion(_ranked(suspects), tuple(sorted(steps)), tuple(sorted(ranks)), about, notes)


def _calls_of(flow: StepFlow, tensors: Iterable[Tensor]) -> list[FlowCall]:
    return [*dict.fromkeys(call for tensor in tensors for call in _calls(flow, tensor))]


def _but(left_out: Sequence[object]) -> str:
    """Return the end of a message about a store of which these steps could not be examined."""
    more = f", and {counted(len(left_out) - 1, 'more step')}" if len(left_out) > 1 else ""
    return f"; left out: {left_out[0]}{more}" if left_out else ""


def _notes_on(left_out: Sequence[object]) -> list[str]:
    return [f"Not all steps could be examined{_but(left_out)}."] if left_out else []


def with_step_before(step: int) -> tuple[int, ...]:
    """Return a step, and the one before it if there is one."""
    return (step - 1, step) if step > 0 else (step,)


def _began(answer: OriginAnswer) -> str:
    return {"born": "was born in", "recorded": "was recorded in"}.get(answer.how or "", "came through")


def _calls(flow: StepFlow, part: Any) -> list[FlowCall]:
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
            for source in (flow.call_of[row] for row in _rows_read(flow, [reader])):
                if source.key not in seen and not is_parameter(source.op_type):
                    seen.add(source.key)
                    culprits.append(source)
                    yield Suspect(_id_of(source.key), worth, f"it writes an input of {reader.op_type}")
        worth *= _FADING


def _rows_read(flow: StepFlow, readers: Iterable[FlowCall]) -> Iterator[int]:
    """Yield the rows of the outputs that calls read."""
    passings = (flow.producer(operand.row) for reader in readers for operand in reader.inputs)
    return (passing.source for passing in passings if passing is not None)


def _id_of(part: Any) -> OperatorId:
    """Return the operator of a tensor or a call; an answer may not know the network of it."""
    return OperatorId(getattr(part, "net", ""), part.graph, part.op_type, part.op_name)


def _ranked(suspects: Iterable[Suspect]) -> tuple[Suspect, ...]:
    best: dict[tuple[str, str, str], Suspect] = {}
    for suspect in suspects:
        known = best.setdefault(suspect.operator[1:], suspect)
        if known.worth < suspect.worth:
            best[suspect.operator[1:]] = suspect
    return tuple(sorted(best.values(), key=lambda suspect: -suspect.worth))


#: By the name of the call of a module, the calls inside of it.
InnerCalls: TypeAlias = dict[str, set[OperatorId]]
_MODULES = ("Module.", "Cell.")


def inner_calls(store: Catalog, key: tuple[int, int]) -> InnerCalls:
    """Return the calls inside of each module in a step (rank, step), as `construct.json` tells them."""
    step, context = store.step(*key), context_of(store, key[0])
    first_rows: dict[OperatorId, int] = {}
    for row, call in enumerate(keys_of(step.tables, np.arange(len(step.tables.labels)))):
        first_rows.setdefault(OperatorId(*call[:4]), row)
    inner = grouped(
        (module, operator)
        for operator, row in first_rows.items()
        if operator.op_name
        for module in context.enclosing(Tensor(step, row))
    )
    return {module: set(calls) for module, calls in inner.items()}


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


#: Suspects that the text names.
_NAMED = 12


@dataclass(frozen=True, slots=True)
class DumpEstimate:
    """What the next dump will cost."""

    files: int
    nbytes: int
    full_files: int
    full_nbytes: int
    run_nbytes: int
    """Bytes of graphs and other files that every dump has, as in the store."""

    @property
    def share(self) -> float:
        """The bytes, as a share of those of a full dump; NaN if that is empty."""
        return self.nbytes / self.full_nbytes if self.full_nbytes else float("nan")


@dataclass(frozen=True, slots=True)
class NextDump:
    """What to dump next."""

    config: WrittenConfig
    about: str
    suspects: tuple[Suspect, ...]
    """The operators that it dumps, the most important one first."""
    left_out: tuple[Suspect, ...]
    estimate: DumpEstimate
    answers: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return the text that `dump-ingest next` prints besides the configuration."""
        return "\n".join(map(printable, _lines(self)))

    def _repr_html_(self) -> str:
        return html_block(f"{self}\n\n{self.config.text}")

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values."""
        return {
            "system": self.config.system,
            "file_name": self.config.file_name,
            "config": self.config.text,
            "use": self.config.use,
            "about": self.about,
            "ranks": list(self.config.ranks),
            "steps": list(self.config.steps),
            **{
                name: [
                    {**of.operator._asdict(), "worth": of.worth, "why": of.why} for of in getattr(self, name)
                ]
                for name in ("suspects", "left_out")
            },
            "estimate": asdict(self.estimate),
            "answers": list(self.answers),
            "notes": list(self.notes),
        }


def _lines(answer: NextDump) -> Iterator[str]:
    config, estimate = answer.config, answer.estimate
    yield f"Next dump ({config.system}): {answer.about}"
    steps, ranks = named_ranges("step", config.steps), named_ranges("rank", config.ranks)
    yield f"  {counted(len(answer.suspects), 'operator')}, {steps}, {ranks}"
    for suspect in answer.suspects[:_NAMED]:
        yield f"    {suspect.operator.op_type} ({suspect.operator.op_name}): {suspect.why}"
    if len(answer.suspects) > _NAMED:
        yield f"    {len(answer.suspects) - _NAMED} more"
    share = f", {estimate.share:.2%} of a full dump" if estimate.full_nbytes else ""
    yield f"  about {counted(estimate.files, 'file')}, {human_bytes(estimate.nbytes)}{share}"
    if estimate.run_nbytes:
        yield f"  and {human_bytes(estimate.run_nbytes)} of graphs and other files, which every dump has"
    if answer.left_out:
        smallest = answer.left_out[0].operator
        yield (
            f"  {counted(len(answer.left_out), 'operator')} beyond the budget, "
            f"the first: {smallest.op_type} ({smallest.op_name})"
        )
    for title, texts in (("It will answer", answer.answers), ("Notes", (*answer.notes, *config.notes))):
        if texts:
            yield ""
            yield title
            yield from (f"  {text}" for text in texts)


NOTHING_NEW = "The store already has all of these tensors: the dump shows whether the problem occurs again."


class _SuspectRow(NamedTuple):
    name: tuple[str, ...]
    io: str
    has_elements: bool


def gains(store: Catalog, suspicion: Suspicion, suspects: Sequence[Suspect]) -> Iterator[str]:
    """Yield in words what the store does not know of the suspects, and the next dump will."""
    known, last = set(store.keys), suspicion.steps[-1]
    names = {suspect.operator[1:] for suspect in suspects}
    in_store = (readable_step(store, rank, last) for rank in suspicion.ranks if StepKey(rank, last) in known)
    rows = [row for step in in_store if step is not None for row in _rows(step, names)]
    if without := sum(not row.has_elements for row in rows):
        yield (
            "which elements of the inputs made it, and their values: of "
            f"{without} of these tensors, the store has statistics alone"
        )
    yield from _from_operands(rows, suspects[0].operator)
    yield from _from_absent_steps(suspicion, known)


def _from_operands(rows: Iterable[_SuspectRow], culprit: OperatorId) -> Iterator[str]:
    of_culprit = [row for row in rows if row.name == culprit[1:]]
    if of_culprit and not any(is_input(row.io) or is_parameter(row.name[1]) for row in of_culprit):
        yield f"whether it came in with the inputs of {culprit.op_type}, which were not dumped"
    if of_culprit and not any(is_output(row.io) for row in of_culprit):
        yield f"what {culprit.op_type} made of its inputs: its outputs were not dumped"


def _from_absent_steps(suspicion: Suspicion, known: Container[StepKey]) -> Iterator[str]:
    *before, last = suspicion.steps
    for step in before:
        absent = [rank for rank in suspicion.ranks if StepKey(rank, step) not in known]
        if absent:
            yield (
                f"how the same tensors were before, in step {step}, "
                f"which the store does not have of rank {absent[0]}"
            )
    for rank in suspicion.ranks:
        if StepKey(rank, last) not in known:
            yield f"what rank {rank} did in step {last}, which the store does not have"


def _rows(step: Step, names: Container[tuple[str, ...]]) -> Iterator[_SuspectRow]:
    rows = tensor_rows(step.tables)
    ios, kinds = (step.tables.label(name)[rows].tolist() for name in ("io", "kind"))
    for call, io, kind in zip(keys_of(step.tables, rows), ios, kinds, strict=True):
        if call[1:4] in names:
            yield _SuspectRow(call[1:4], str(io), kind == RowKind.TENSOR.value and step.has_tensors)


PURPOSES = ("origin", "divergence", "tensor")
#: Operators that one configuration names at the most: a list of thousands is nothing that a person checks.
_MAX_OPERATORS = 200


def next_dump(
    store: Catalog,
    purpose: str = "origin",
    names: str | Iterable[str] = (),
    *,
    system: str | None = None,
    budget: int | None = None,
    directory: str | None = None,
    rank: Any = None,
    step: Any = None,
) -> NextDump:
    """Return the configuration of a dump that answers what the one in the store leaves open.

    Chosen are the operators under suspicion, what wrote their inputs, and other candidates; the step in
    question and the one before it; the ranks concerned. With a budget, operators are chosen by worth until
    it is used up, also farther ones.

    Args:
        store: the store.
        purpose: `origin` (of NaN, Inf and overflows), `divergence` (of replicas), or `tensor`.
        names: for `tensor`: names of tensors, which may be globs.
        system: the system to write for; that which made the dump if None. See `WRITERS`.
        budget: how many bytes of tensors the dump may have; None for what is worth it in any case.
        directory: where the dump is to go; next to the former one if None.
        rank: look only at this rank, or these.
        step: look only at this step, or these.

    Raises:
        UsageError: nothing is suspected, a name fits nothing, or the system cannot dump what is suspected.
    """
    refuse_url(store)
    if purpose not in PURPOSES:
        raise UsageError(f"no purpose {purpose!r}", hint=f"Purposes: {', '.join(PURPOSES)}.")
    suspicion = _suspicion(store, purpose, as_names(names), rank, step)
    near = _near(store, suspicion)
    former = configuration_of(store, near[0])
    chosen_step = store.step(*near)
    source = chosen_step.commit.record.source
    system = system or system_of(source.layout, chosen_step.tables.label("source")[:8].tolist())
    if system in WITHOUT_PARAMETERS:
        suspicion = suspicion.without_parameters()
    inner = inner_calls(store, near) if system == "msprobe" else {}
    suspicion = without_wrappers(suspicion, inner)
    sizes = Sizes(store, system, dumped_with(suspicion, inner))
    names_of = _Names(store, near)
    request = DumpRequest(
        operators=tuple(names_of.requested(suspect.operator) for suspect in suspicion.suspects[:1]),
        steps=suspicion.steps,
        ranks=suspicion.ranks,
        job_ranks=tuple(sizes.ranks),
        directory=directory or f"{(former.asked.directory or source.root).rstrip('/')}_next",
        version=former.version,
        device=former.device,
        former=former.content,
    )
    # The system may dump more ranks and steps than were chosen.
    suspects, left_out = _within(budget, suspicion.suspects, sizes, write_config(system, request))
    operators = tuple(names_of.requested(suspect.operator) for suspect in suspects)
    config = write_config(system, replace(request, operators=operators))
    estimate = _estimate(store, sizes, [suspect.operator for suspect in suspects], config)
    if budget is not None and estimate.nbytes > budget:
        raise UsageError(
            f"{suspects[0].operator.op_type} ({suspects[0].operator.op_name}) alone needs "
            f"{human_bytes(estimate.nbytes)}, more than the budget of {human_bytes(budget)}",
            hint="Give a larger --budget, or fewer ranks and steps with --rank and --step.",
        )
    answers = tuple(gains(store, suspicion, suspects))
    notes = suspicion.notes if answers else (*suspicion.notes, NOTHING_NEW)
    return NextDump(config, suspicion.about, tuple(suspects), tuple(left_out), estimate, answers, notes)


def _suspicion(store: Catalog, purpose: str, names: list[str], rank: Any, step: Any) -> Suspicion:
    if purpose == "tensor":
        if not names:
            raise UsageError("no tensor is named", hint="dump-ingest next STORE NAME... --for tensor")
        return suspicion_of_names(store, names, rank, step)
    if names:
        raise UsageError(f"--for {purpose} takes no names", hint="Names of tensors belong to --for tensor.")
    if purpose == "divergence":
        return suspicion_of_divergence(store, divergence(store, rank=rank, step=step, layout=False))
    return suspicion_of_origin(store, origin(store, rank, step))


def _near(store: Catalog, suspicion: Suspicion) -> tuple[int, int]:
    """Return a rank and a step in the store that the suspicion is about: the last one that can be read."""
    keys = sorted(
        ((key.rank, key.step) for key in store.keys if key.step is not None),
        key=lambda key: (key[0] in suspicion.ranks and key[1] in suspicion.steps, key[1], -key[0]),
        reverse=True,
    )
    return next((key for key in keys if readable_step(store, *key) is not None), keys[0])


class _Names:
    def __init__(self, store: Catalog, near: tuple[int, int]) -> None:
        self._step = store.step(*near)
        self._context = context_of(store, near[0])
        rows = tensor_rows(self._step.tables)
        self._rows: dict[tuple[str, ...], tuple[int, str]] = {}
        for row, call in zip(rows.tolist(), keys_of(self._step.tables, rows), strict=True):
            self._rows.setdefault(call[1:4], (row, call.net))

    def requested(self, operator: OperatorId) -> RequestedOperator:
        """Return an operator with its full name, if files of the dump have it."""
        row, net = self._rows.get(tuple(operator[1:]), (-1, operator.net))
        full_name = self._full_name(row, operator.op_name) if row >= 0 else ""
        return RequestedOperator(operator.net or net, *operator[1:], full_name)

    def _full_name(self, row: int, op_name: str) -> str:
        tensor = Tensor(self._step, row)
        if tensor.full_name:
            return tensor.full_name
        match = self._context.match(tensor)
        for name in match.names if match is not None else ():
            # An operator of the same type may have another number in the graph: that would be another one.
            if op_name in (flatten(name), name.rpartition("/")[2]):
                return name
        return ""


def _within(
    budget: int | None, suspects: Sequence[Suspect], sizes: Sizes, config: WrittenConfig
) -> tuple[list[Suspect], list[Suspect]]:
    """Return the suspects that are dumped, and those that do not fit.

    Args:
        budget: the bytes that their tensors may have; None for what is worth it in any case, and the best of
            them if nothing is.
        suspects: at least one, the most important one first.
        sizes: of their tensors.
        config: tells the ranks and steps.
    """
    if budget is None:
        least = min(WORTH_DUMPING, suspects[0].worth)
        worth = [suspect for suspect in suspects if suspect.worth >= least]
        return worth[:_MAX_OPERATORS], worth[_MAX_OPERATORS:]
    chosen: list[Suspect] = []
    used = 0
    for suspect in suspects:
        nbytes = sizes.of([suspect.operator], config.ranks, config.steps).nbytes
        if (not chosen or used + nbytes <= budget) and len(chosen) < _MAX_OPERATORS:
            chosen.append(suspect)
            used += nbytes
    return chosen, [suspect for suspect in suspects if suspect not in chosen]


def _estimate(
    store: Catalog,
    sizes: Sizes,
    operators: Sequence[OperatorId],
    config: WrittenConfig,
) -> DumpEstimate:
    amount = sizes.of(operators, config.ranks, config.steps)
    full = sizes.of(None, config.ranks, config.steps)
    run_keys = [key for key in store.keys if key.step is None and key.rank in config.ranks]
    run_nbytes = sum(files.commit.summary.raw_bytes for files in store.committed(run_keys, []))
    return DumpEstimate(amount.files, amount.nbytes, full.files, full.nbytes, run_nbytes)
