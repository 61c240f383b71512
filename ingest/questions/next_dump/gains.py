"""What the next dump will answer that the one in the store cannot."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ingest.questions.next_dump.estimate import readable_step
from ingest.questions.next_dump.suspicion import OperatorId, Suspect, Suspicion
from ingest.reader.catalog import Catalog
from ingest.reader.flow.operator_kinds import is_input, is_output, is_parameter
from ingest.reader.step import Step
from workers.model import StepKey
from workers.store.model import RowKind

NOTHING_NEW = "The store already has all of these tensors: the dump shows whether the problem occurs again."


@dataclass(frozen=True, slots=True)
class _SuspectRow:
    """A tensor of a suspect in the store."""

    name: tuple[str, ...]
    """Graph, type and name of its operator."""
    io: str
    has_elements: bool


def gains(store: Catalog, suspicion: Suspicion, suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """Return in words what the store does not know of the suspects, and the next dump will."""
    return tuple(_gains(store, suspicion, suspects))


def _gains(store: Catalog, suspicion: Suspicion, suspects: Sequence[Suspect]) -> Iterator[str]:
    known = set(store.keys)
    last = suspicion.steps[-1]
    names = {suspect.operator[1:] for suspect in suspects}
    in_store = (readable_step(store, rank, last) for rank in suspicion.ranks if StepKey(rank, last) in known)
    rows = [row for step in in_store if step is not None for row in _rows(step, names)]
    yield from _from_elements(rows)
    yield from _from_operands(rows, suspects[0].operator)
    yield from _from_absent_steps(suspicion, known)


def _from_elements(rows: Iterable[_SuspectRow]) -> Iterator[str]:
    """Yield the gains from elements of tensors that have only statistics in the store."""
    without = sum(not row.has_elements for row in rows)
    if without:
        yield (
            "which elements of the inputs made it, and their values: of "
            f"{without} of these tensors, the store has statistics alone"
        )


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


def _rows(step: Step, names: Iterable[tuple[str, ...]]) -> Iterator[_SuspectRow]:
    tables = step.tables
    labels = (tables.label(name).tolist() for name in ("graph", "op_type", "op_name", "io", "kind"))
    wanted = set(names)
    for graph, op_type, op_name, io, kind in zip(*labels, strict=True):
        name = (str(graph), str(op_type), str(op_name))
        if name in wanted and kind in (RowKind.TENSOR.value, RowKind.STATISTICS.value):
            yield _SuspectRow(name, str(io), kind == RowKind.TENSOR.value and step.has_tensors)
