"""Check every tensor against what it follows from in the same store.

Each output is held against the definition of its operator and the recorded inputs, and each input against
what wrote it. What follows is proved; what does not follow in one place, while the rest does, is a failure.
Nothing is compared with another run, and limits follow from types and sizes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from ingest.identities.check import IdentityCheck, check
from ingest.identities.definition import Array, CallOperands
from ingest.identities.difference import DifferenceShape
from ingest.identities.operators import DEFINITIONS, expectations, plain_name
from ingest.questions.question import Answer, Note, Part, Partial, Plain, Question, Ranks, Steps, Table
from ingest.reader.catalog import Catalog
from ingest.reader.flow.operator_kinds import is_container, is_parameter, writes_in_place
from ingest.reader.flow.step_flow import FlowCall, FlowOperand, StepFlow, flow_of
from ingest.reader.snapshot import LeftOut, Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted
from workers.arrays.comparison import is_real
from workers.arrays.dtypes import from_name

#: What proves a tensor.
COPY = "copy"
#: Names of the parameters that a module of PyTorch computes with, in the order of its function.
_PARAMETERS = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class AuditFailure(Plain):
    """A tensor that does not follow from what it was computed from, in the steps in which it does not."""

    rank: int
    steps: tuple[int, ...]
    name: str
    """The first one by order of execution, if several of an operator fail."""
    identity: str
    """What should hold, such as `matmul`."""
    evidence: str
    """`shown`: from the values of this run."""
    what: str
    """Which elements, and what turns what they should be into what they are."""
    times: float | None
    """The largest difference in units of its limit, in the first step; None if bits should be equal."""
    where: str
    how: str
    elements: int
    size: int
    told: str
    """What the other elements showed of the operator, such as `eps = 1e-05`."""


@dataclass(frozen=True, slots=True)
class Share(Plain):
    """How many tensors are proved by one kind of identity, or are not covered for one reason."""

    kind: str
    is_proved: bool
    tensors: int
    nbytes: int
    example: str
    """The first of them."""
    told: tuple[str, ...] = ()
    """What was found out about operators of this kind: the most frequent attributes."""


@dataclass(frozen=True, slots=True)
class AuditAnswer(Answer):
    """What follows, what does not, and what cannot be checked."""

    noun: ClassVar = "failure"
    also: ClassVar = ("tensors", "nbytes", "proved", "proved_nbytes")

    store: str
    failures: tuple[AuditFailure, ...]
    """In order of execution: by step, rank, and within it."""
    coverage: tuple[Share, ...]
    """By kind, those that are proved first, the largest first."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps that the answer is not about, and why."""

    @property
    def is_alarm(self) -> bool:
        """Whether anything fails."""
        return bool(self.failures)

    @property
    def tensors(self) -> int:
        """All tensors whose elements were dumped."""
        return sum(share.tensors for share in self.coverage) + sum(len(each.steps) for each in self.failures)

    @property
    def nbytes(self) -> int:
        """Their bytes, those that fail left out."""
        return sum(share.nbytes for share in self.coverage)

    @property
    def proved(self) -> int:
        """The tensors that follow from others."""
        return sum(share.tensors for share in self.coverage if share.is_proved)

    @property
    def proved_nbytes(self) -> int:
        """Their bytes."""
        return sum(share.nbytes for share in self.coverage if share.is_proved)

    def table(self) -> Table[AuditFailure]:
        """Return a row for each failure."""
        return Table(
            {
                "step": lambda each: ", ".join(map(str, each.steps[:3])) + ", ..." * (len(each.steps) > 3),
                "rank": lambda each: str(each.rank),
                "limits": lambda each: "bits" if each.times is None else f"{each.times:.3g}",
                "what": lambda each: each.what,
                "name": lambda each: each.name,
            },
            self.failures,
            self.noun,
            right=("step", "rank", "limits"),
        )

    def report(self) -> Iterator[Part]:
        """Yield the coverage, then the failures."""
        share = f"{self.proved_nbytes / max(self.nbytes, 1):.1%} of bytes"
        yield f"{self.proved} of {counted(self.tensors, 'tensor')} follow from others ({share})"
        yield Table(
            {
                "": lambda each: "proved" if each.is_proved else "not covered",
                "tensors": lambda each: str(each.tensors),
                "MB": lambda each: f"{each.nbytes / 1e6:.2f}",
                "by, or why not": lambda each: each.kind,
                "found": lambda each: "; ".join(each.told),
                "first": lambda each: each.example,
            },
            self.coverage,
            "kind",
            right=("tensors", "MB"),
            spare=("first", "found"),
        )
        if self.failures:
            yield self.table()
            yield from map(Note, _suspects(self.failures))
        else:
            yield Note("nothing fails", "")


def _suspects(failures: Iterable[AuditFailure]) -> Iterator[str]:
    """Yield the ranks on which several operators fail, or one in several steps."""
    by_rank: dict[int, list[AuditFailure]] = defaultdict(list)
    for failure in failures:
        by_rank[failure.rank].append(failure)
    for rank, own in by_rank.items():
        steps = {step for failure in own for step in failure.steps}
        if len(steps) > 1 and len(by_rank) == 1:
            many = f"{counted(len(own), 'tensor')} in {len(steps)} steps"
            yield f"all failures are on rank {rank}: {many}: suspect its host"


class _Checked(NamedTuple):
    """One tensor."""

    row: int
    kind: str
    """What proves it, or why it is not covered."""
    outcome: IdentityCheck


def audit(
    store: Catalog, rank: Ranks = None, step: Steps = None, *, include_partial: Partial = False
) -> AuditAnswer:
    """Check every tensor against what it follows from: what does not follow was computed wrongly.

    Needs no reference run. Outputs are recomputed from the recorded inputs of their operators, and inputs are
    held against what wrote them. First it says what is proved and what cannot be, then what fails, in order
    of execution. Limits follow from types, lengths of sums and magnitudes. The command exits with 5 if
    anything fails.

    Memory: the tensors of the largest call, in float64, some times.

    Raises:
        UsageError: a rank or step is not in the store, or no step is complete.
        DamagedStore: no step can be read.
    """
    return ask_of_undamaged(take_snapshot(store, rank, step, include_partial=include_partial), _audited)


def _audited(snapshot: Snapshot) -> AuditAnswer:
    tally = _AuditTally()
    for opened in snapshot.chosen.values():
        for checked in _StepAudit(opened).checked():
            tally.add(Tensor(opened, checked.row), checked)
        opened.forget_tables()
    return AuditAnswer(snapshot.store.url, tally.failures(), tally.coverage(), snapshot.left_out)


class _StepAudit:
    """Goes through the calls of one step of one rank."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._flow: StepFlow = flow_of(step)
        self._parameters = {
            key.op_name: call.outputs[0]
            for key, call in self._flow.calls.items()
            if is_parameter(key.op_type) and call.outputs
        }

    def checked(self) -> Iterator[_Checked]:
        """Yield what is known of each of its tensors."""
        for call in self._flow.calls.values():
            for operand in call.inputs:
                yield self._input(operand)
            yield from self._outputs(call)

    def _input(self, operand: FlowOperand) -> _Checked:
        if operand.row in self._flow.own_writes:
            return _Checked(operand.row, "written in place before it was dumped", IdentityCheck("open"))
        passing = self._flow.producer(operand.row)
        if passing is None:
            return _Checked(operand.row, "read from what was not dumped", IdentityCheck("open"))
        if passing.by == "graph":
            return _Checked(operand.row, "differs from what the graph says it read", IdentityCheck("open"))
        return _Checked(operand.row, COPY, IdentityCheck("holds"))

    def _outputs(self, call: FlowCall) -> Iterator[_Checked]:
        operands = None
        name = plain_name(call.op_type)
        for slot, output in enumerate(call.outputs):
            reason = self._reason(call, output)
            if not reason:
                operands = operands or self._operands(call)
                found = check(operands.outputs[slot], expectations(call.op_type, operands, slot))
                if found.status == "fails" and writes_in_place(call.op_type):
                    found = IdentityCheck("open", "written in place")
                reason = f"{name}: {found.told}" if found.status == "open" else name
            else:
                found = IdentityCheck("open")
            if found.status == "open" and self._is_copy(call, output):
                reason, found = COPY, IdentityCheck("holds")
            yield _Checked(output.row, reason, found)

    def _is_copy(self, call: FlowCall, output: FlowOperand) -> bool:
        """Return whether a module passed on what a call in it wrote, or a parameter what its update wrote."""
        passing = self._flow.producer(output.row)
        if passing is None:
            return False
        writer = self._flow.call_of[passing.source]
        return not is_parameter(call.op_type) or writes_in_place(writer.op_type)

    def _reason(self, call: FlowCall, output: FlowOperand) -> str:
        """Return why an output cannot be held against a definition; "" if it can."""
        if is_parameter(call.op_type):
            return "parameter"
        name = plain_name(call.op_type)
        if name not in DEFINITIONS:
            return f"no definition of {name}"
        if not call.inputs:
            return "no inputs were dumped"
        if not all(self._is_readable(each) for each in (output, *call.inputs)):
            return "only statistics, or not numbers"
        return ""

    def _is_readable(self, operand: FlowOperand) -> bool:
        tensor = Tensor(self._step, operand.row)
        return tensor.is_dumped and not tensor.removed and is_real(from_name(tensor.dtype))

    def _operands(self, call: FlowCall) -> CallOperands:
        given = sorted(call.inputs, key=lambda each: (not each.io.startswith("input"), each.slot))
        named = {each.io.rpartition(".")[2]: self._read(each) for each in given if "." in each.io}
        if is_container(call.op_type):
            for each in _PARAMETERS:
                parameter = self._parameters.get(f"{call.key.op_name}.{each}")
                if parameter is not None and self._is_readable(parameter):
                    named[each] = self._read(parameter)
        inputs = [self._read(each) for each in given if "." not in each.io]
        return CallOperands(
            [*inputs, *(named[each] for each in _PARAMETERS if each in named)],
            named,
            [self._read(each) for each in call.outputs],
        )

    def _read(self, operand: FlowOperand) -> Array:
        return Tensor(self._step, operand.row).read(verify=False)


@dataclass(slots=True)
class _Running:
    """A `Share` that is added up."""

    example: str
    tensors: int = 0
    nbytes: int = 0
    told: Counter[str] = field(default_factory=Counter)


class _AuditTally:
    """Adds up what is proved, and gathers what fails."""

    def __init__(self) -> None:
        self._shares: dict[tuple[bool, str], _Running] = {}
        self._failures: dict[tuple[int, str], AuditFailure] = {}

    def add(self, tensor: Tensor, checked: _Checked) -> None:
        """Add one tensor; nothing of it is kept but its name."""
        found, step, key = checked.outcome, tensor.step or 0, (tensor.rank, tensor.name)
        if found.status == "fails" and found.difference is not None:
            new = _failure(tensor, step, checked.kind, found, found.difference)
            earlier = self._failures.setdefault(key, new)
            if earlier is not new:
                self._failures[key] = replace(earlier, steps=(*earlier.steps, step))
            return
        is_proved = found.status == "holds"
        share = self._shares.setdefault((is_proved, checked.kind), _Running(tensor.name))
        share.tensors += 1
        share.nbytes += tensor.nbytes
        share.told.update([found.told] if is_proved and found.told else [])

    def coverage(self) -> tuple[Share, ...]:
        """Return the shares."""
        shares = (
            Share(kind, is_proved, own.tensors, own.nbytes, own.example, tuple(dict(own.told.most_common(3))))
            for (is_proved, kind), own in self._shares.items()
        )
        return tuple(sorted(shares, key=lambda share: (not share.is_proved, -share.nbytes)))

    def failures(self) -> tuple[AuditFailure, ...]:
        """Return the failures, by first step, rank and order of execution."""
        return tuple(sorted(self._failures.values(), key=lambda each: (each.steps[0], each.rank)))


def _failure(
    tensor: Tensor, step: int, kind: str, found: IdentityCheck, shape: DifferenceShape
) -> AuditFailure:
    return AuditFailure(
        tensor.rank,
        (step,),
        tensor.name,
        kind,
        "shown",
        str(shape),
        found.times if math.isfinite(found.times) else None,
        shape.where,
        shape.how,
        shape.elements,
        shape.size,
        found.told,
    )


QUESTION = Question(audit, ("audit run.zarr", "audit run.zarr --step 40 --rank 3"), noun="failure")
