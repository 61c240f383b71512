"""The next dump: its configuration, what it costs, and what it will answer that the store cannot."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from ingest.dump_configs.model import DumpRequest, RequestedOperator, WrittenConfig, flatten
from ingest.dump_configs.writing import WITHOUT_PARAMETERS, system_of, write_config
from ingest.questions.divergence.find import divergence
from ingest.questions.next_dump.estimate import Sizes, readable_step
from ingest.questions.next_dump.suspicion import (
    WORTH_DUMPING,
    OperatorId,
    Suspect,
    Suspicion,
    dumped_with,
    inner_calls,
    suspicion_of_divergence,
    suspicion_of_names,
    suspicion_of_origin,
    without_wrappers,
)
from ingest.questions.origin.search import origin
from ingest.reader.catalog import Catalog
from ingest.reader.choice import as_names, named_ranges
from ingest.reader.context import context_of
from ingest.reader.context.files import configuration_of
from ingest.reader.operator_kinds import is_input, is_output, is_parameter
from ingest.reader.snapshot import refuse_url
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted, html_block, printable
from ingest.units import human_bytes
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.model import RowKind

#: Suspects that the text names.
_NAMED = 12


@dataclass(frozen=True, slots=True)
class DumpEstimate:
    """What the next dump will cost."""

    files: int
    """Files of tensors."""
    nbytes: int
    """Their bytes."""
    seconds: float | None
    """What dumping adds to the time of the job; None if the store does not know how long dumping took."""
    full_files: int
    """The files of a dump of all operators, of the same steps and ranks."""
    full_nbytes: int
    run_nbytes: int
    """Bytes of graphs and other files that every dump has, as in the store."""
    seconds_unknown: str = ""
    """Why the time is not known; "" if it is."""

    @property
    def share(self) -> float:
        """The bytes, as a share of those of a full dump; NaN if that is empty."""
        return self.nbytes / self.full_nbytes if self.full_nbytes else float("nan")


@dataclass(frozen=True, slots=True)
class NextDump:
    """What to dump next."""

    config: WrittenConfig
    about: str
    """What it is about, in one sentence."""
    suspects: tuple[Suspect, ...]
    """The operators that it dumps, the most important one first."""
    left_out: tuple[Suspect, ...]
    """Operators that did not fit into the budget."""
    estimate: DumpEstimate
    answers: tuple[str, ...]
    """What it will answer that the dump in the store cannot."""
    notes: tuple[str, ...]
    """What is not certain, or not possible."""

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
    seconds = _time(estimate.seconds, estimate.seconds_unknown)
    share = f", {estimate.share:.2%} of a full dump" if estimate.full_nbytes else ""
    yield f"  about {counted(estimate.files, 'file')}, {human_bytes(estimate.nbytes)}{share}; {seconds}"
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


def _time(seconds: float | None, unknown: str) -> str:
    if seconds is None:
        return f"time not known: {unknown}" if unknown else "time not known"
    if seconds < 1:
        return "less than 1 s"
    return f"about {seconds:.0f} s" if seconds < 600 else f"about {seconds / 60:.0f} min"


NOTHING_NEW = "The store already has all of these tensors: the dump shows whether the problem occurs again."


class _SuspectRow(NamedTuple):
    """A tensor of a suspect in the store."""

    name: tuple[str, ...]
    """Graph, type and name of its operator."""
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
    """Yield the gains from inputs or outputs of the culprit, if the store has only the others."""
    of_culprit = [row for row in rows if row.name == culprit[1:]]
    if of_culprit and not any(is_input(row.io) or is_parameter(row.name[1]) for row in of_culprit):
        yield f"whether it came in with the inputs of {culprit.op_type}, which were not dumped"
    if of_culprit and not any(is_output(row.io) for row in of_culprit):
        yield f"what {culprit.op_type} made of its inputs: its outputs were not dumped"


def _from_absent_steps(suspicion: Suspicion, known: Container[StepKey]) -> Iterator[str]:
    """Yield the gains from steps that the store does not have of the chosen ranks."""
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
    tables = step.tables
    labels = (tables.label(name).tolist() for name in ("graph", "op_type", "op_name", "io", "kind"))
    for graph, op_type, op_name, io, kind in zip(*labels, strict=True):
        name = (str(graph), str(op_type), str(op_name))
        if name in names and kind in (RowKind.TENSOR.value, RowKind.STATISTICS.value):
            yield _SuspectRow(name, str(io), kind == RowKind.TENSOR.value and step.has_tensors)


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
    estimate = _estimate(store, sizes, [suspect.operator for suspect in suspects], config, near)
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
    keys = [(key.rank, key.step) for key in store.keys if key.step is not None]
    keys.sort(
        key=lambda key: (key[0] in suspicion.ranks and key[1] in suspicion.steps, key[1], -key[0]),
        reverse=True,
    )
    return next((key for key in keys if readable_step(store, *key) is not None), keys[0])


class _Names:
    """The names of operators as the framework spells them."""

    def __init__(self, store: Catalog, near: tuple[int, int]) -> None:
        self._step = store.step(*near)
        self._context = context_of(store, near[0])
        tables = self._step.tables
        labels = (tables.label(name).tolist() for name in ("graph", "op_type", "op_name", "net"))
        self._rows: dict[tuple[str, ...], tuple[int, str]] = {}
        kinds = tables.label("kind").tolist()
        for row, (kind, *name, net) in enumerate(zip(kinds, *labels, strict=True)):
            if kind in (RowKind.TENSOR.value, RowKind.STATISTICS.value):
                self._rows.setdefault(tuple(map(str, name)), (row, str(net)))

    def requested(self, operator: OperatorId) -> RequestedOperator:
        """Return an operator with its full name, if files of the dump have it."""
        row, net = self._rows.get(tuple(operator[1:]), (-1, operator.net))
        full_name = self._full_name(row, operator.op_name) if row >= 0 else ""
        return RequestedOperator(
            operator.net or net, operator.graph, operator.op_type, operator.op_name, full_name
        )

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
    left_out: list[Suspect] = []
    used = 0
    for suspect in suspects:
        nbytes = sizes.of([suspect.operator], config.ranks, config.steps).nbytes
        if (not chosen or used + nbytes <= budget) and len(chosen) < _MAX_OPERATORS:
            chosen.append(suspect)
            used += nbytes
        else:
            left_out.append(suspect)
    return chosen, left_out


def _estimate(
    store: Catalog,
    sizes: Sizes,
    operators: Sequence[OperatorId],
    config: WrittenConfig,
    near: tuple[int, int],
) -> DumpEstimate:
    amount = sizes.of(operators, config.ranks, config.steps)
    full = sizes.of(None, config.ranks, config.steps)
    # Ranks dump at the same time.
    whole = sizes.of(None, [near[0]], [near[1]])
    of_step = sizes.time_of_step(*near)
    seconds = None
    if of_step.seconds is not None and whole.files and config.ranks:
        part = sizes.of(operators, [near[0]], config.steps)
        seconds = of_step.seconds * max(part.files / whole.files, part.nbytes / max(whole.nbytes, 1))
    run_keys = [key for key in store.keys if key.step is None and key.rank in config.ranks]
    run_nbytes = sum(files.commit.summary.raw_bytes for files in store.committed(run_keys, []))
    return DumpEstimate(
        amount.files, amount.nbytes, seconds, full.files, full.nbytes, run_nbytes, of_step.unknown
    )
