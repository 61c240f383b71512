"""Check every tensor against what it follows from in the same store.

Each output is held against the definition of its operator and the recorded inputs, and each input against
what wrote it. What follows is proved; what does not follow in one place, while the rest does, is a failure.
Nothing is compared with another run, and limits follow from types and sizes. The same computations in float64
tell how much error was born in each operator, and how much it inherited.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from ingest.identities.audit import (
    ADDED,
    NOT_REDUCED,
    REDUCED,
    SEQUENTIAL,
    STALE,
    CheckedTensor,
    RankHistory,
    StepAudit,
)
from ingest.identities.budget import StepBudget
from ingest.identities.check import IdentityCheck
from ingest.identities.difference import DifferenceShape, Level
from ingest.identities.operators import PRODUCTS
from ingest.identities.optimizer import (
    CLIPPED_AWAY,
    JUMPED,
    LOST,
    RESET,
    WITHOUT_GRADIENT,
    rate_of,
)
from ingest.identities.updates import NOT_UPDATED
from ingest.questions.question import Answer, Mode, Note, Option, Part, Partial, Question, Ranks, Steps, Table
from ingest.reader.catalog import Catalog
from ingest.reader.operator_kinds import RECOMPUTED
from ingest.reader.snapshot import LeftOut, Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.tensor import Tensor
from ingest.reader.text import Plain, counted
from workers.model import StepKey, grouped

#: What a tensor should be by an identity other than the definition of an operator.
_SHOULD = {
    SEQUENTIAL: "not what its last module gave: ",
    RECOMPUTED: "not what the forward pass read: ",
}
#: How many times smaller a rate is again after a step in which it jumped.
_FALLS = 5.0
#: By how many units of roundoff a gradient must change its parameter, going by what those of others do.
_CLEAR = 8.0


@dataclass(frozen=True, slots=True)
class AuditFailure(Plain):
    """A tensor that does not follow from what it was computed from, in the steps in which it does not."""

    rank: int
    steps: tuple[int, ...]
    name: str
    """The first one by order of execution, if several of an operator fail."""
    identity: str
    """What should hold, such as `matmul`."""
    cause: str
    """What is the matter, in the words of the other answers; "" if only the place is known."""
    level: Level
    """What backs the cause; `open` without one."""
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
    follows: int = 0
    """How many more tensors have the same cause."""
    failed: int = 0
    """How many tensors do not follow, over all steps; of a mistake that shows in no single one, 0."""
    host: str = ""
    """The host that dumped the rank, if what fails makes its hardware suspect; else ""."""


@dataclass(frozen=True, slots=True)
class Share(Plain):
    """How many tensors are proved by one kind of identity, or are not covered for one reason."""

    kind: str
    is_proved: bool
    tensors: int
    nbytes: int
    example: str
    told: tuple[str, ...] = ()
    """What was found out about operators of this kind: the most frequent attributes."""


@dataclass(frozen=True, slots=True)
class AuditAnswer(Answer):
    """What follows, what does not, and what cannot be checked."""

    noun: ClassVar = "failure"
    also: ClassVar = ("tensors", "nbytes", "proved", "proved_nbytes")

    store: str
    failures: tuple[AuditFailure, ...]
    coverage: tuple[Share, ...]
    """By kind, those that are proved first, the largest first."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"Audit: {self.store}"

    @property
    def is_alarm(self) -> bool:
        """Whether anything fails."""
        return bool(self.failures)

    @property
    def tensors(self) -> int:
        """All tensors whose elements were dumped."""
        return sum(share.tensors for share in self.coverage) + sum(each.failed for each in self.failures)

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
                "what": lambda each: f"{each.cause}: {each.what}" if each.cause else each.what,
                "more": lambda each: str(each.follows or ""),
                "name": lambda each: each.name,
            },
            self.failures,
            self.noun,
            right=("step", "rank", "limits", "more"),
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
        else:
            yield Note("nothing fails", "")


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
    histories: dict[int, RankHistory] = defaultdict(RankHistory)
    for step in snapshot.steps:
        audits = {rank: StepAudit(opened) for rank, opened in snapshot.of_step(step).items()}
        for rank, own in audits.items():
            for checked in own.checked(audits, histories[rank]):
                tally.add(Tensor(snapshot.chosen[StepKey(rank, step)], checked.row), checked)
    hosts = {key.rank: opened.commit.record.source.host for key, opened in snapshot.chosen.items()}
    return AuditAnswer(snapshot.store.url, tally.failures(hosts), tally.coverage(), snapshot.left_out)


@dataclass(slots=True)
class _Running:
    """A `Share` that is added up."""

    example: str
    tensors: int = 0
    nbytes: int = 0
    told: Counter[str] = field(default_factory=Counter)


class _SeenInStep(NamedTuple):
    name: str
    told: str
    size: float
    """Of a gradient, as a share of the change that it made; if it made none, of the least that would show."""


#: What is told of the updates of most parameters if it is a mistake: its cause, its level, and its words.
_OF_UPDATES = (
    (
        RESET,
        "optimizer state lost",
        Level.SHOWN,
        "follows from this gradient alone, as if no step were before",
    ),
    (
        CLIPPED_AWAY,
        "gradients clipped to nothing",
        Level.LIKELY,
        "changes as if its gradient were far smaller than the eps of Adam, and clipped to one norm",
    ),
    (
        WITHOUT_GRADIENT,
        "gradients clipped to nothing",
        Level.LIKELY,
        "changes by its momentum alone, as if its gradient were far smaller than it is",
    ),
)


class _RankPatterns:
    """Mistakes of one rank that no single tensor shows: what holds for all of a step, or for all but some."""

    def __init__(self) -> None:
        self._gradients: dict[int, list[_SeenInStep]] = defaultdict(list)
        self._updates: dict[int, list[_SeenInStep]] = defaultdict(list)
        self._stale: dict[str, list[int]] = defaultdict(list)
        self._lost: dict[str, list[int]] = defaultdict(list)
        self._last_told: dict[str, str] = {}
        """By parameter: what its last update told."""
        self._unknown = Counter[int]()
        self._moved: set[int] = set()
        self._parted: set[str] = set()

    def add(self, step: int, name: str, checked: CheckedTensor) -> None:
        """Take what is known of a tensor, if it is a gradient or parameter."""
        found = checked.outcome
        kind, seen = checked.kind.partition(":")[0], _SeenInStep(name, found.told, found.times)
        if not checked.is_replica:
            self._parted.add(name.removeprefix("Parameter."))
        if found.told == STALE:
            self._stale[name].append(step)
        elif kind == "gradient" and found.status == "holds":
            self._gradients[step].append(seen)
        elif kind == "optimizer":
            self._last_told[name] = found.told
            if LOST in found.told:
                self._lost[name].append(step - 1)
            if found.told != NOT_UPDATED:
                self._moved.add(step)
            if found.status == "holds" or found.told == NOT_UPDATED:
                self._updates[step].append(seen)
            else:
                self._unknown[step] += 1

    def failures(self, rank: int) -> Iterator[AuditFailure]:
        """Yield a failure for each mistake: of the tensors that have it in the same steps, the first."""
        patterns: list[tuple[str, Level, str, dict[str, list[int]]]] = [
            (
                "gradients add up over steps",
                Level.SHOWN,
                "is added to the gradient of the step before, with which parameters were changed",
                self._added(),
            ),
            (
                "missing reduction",
                Level.SHOWN,
                "equals what this rank alone computes; other gradients are reduced",
                self._alone(),
            ),
            (
                "update does not happen",
                Level.SHOWN,
                "has a gradient and does not change; other parameters do",
                self._unchanged(),
            ),
            (
                "stale value",
                Level.SHOWN,
                "follows from the parameters of the step before; that of a replica from the new ones",
                self._stale,
            ),
            (
                "stale value",
                Level.SHOWN,
                "does not change; the next update goes on from the state that this one left",
                self._lost_updates(),
            ),
            (
                "factor",
                Level.SHOWN,
                "changes far more than by the rate of the steps before and after",
                self._jumps(),
            ),
            *((cause, level, what, self._told(told)) for told, cause, level, what in _OF_UPDATES),
        ]
        for cause, level, what, found in patterns:
            if found:
                steps = min(found.values(), key=lambda steps: (steps[0], -len(steps)))
                name = next(name for name, own in found.items() if own[0] == steps[0])
                kind = {"Gradient": "gradient", "Parameter": "optimizer"}.get(name.partition(".")[0], "copy")
                yield AuditFailure(
                    rank=rank,
                    steps=tuple(steps),
                    name=name,
                    identity=kind,
                    cause=cause,
                    level=level,
                    what=what,
                    times=None,
                    where="everywhere",
                    how="other",
                    elements=0,
                    size=0,
                    told="",
                    follows=len(found) - 1,
                )

    def _added(self) -> dict[str, list[int]]:
        """Return gradients that are never reset any more; passes that count as one batch end with a reset."""
        steps = [step for step, seen in self._gradients.items() if any(each.told == ADDED for each in seen)]
        is_to_the_end = steps and steps == [step for step in self._gradients if step >= steps[0]]
        if len(steps) < 2 or not is_to_the_end or not self._moved.issuperset(step - 1 for step in steps):
            return {}
        # What no update reads is cleared by no `zero_grad` of the optimizer either.
        still = {name.replace("Parameter.", "Gradient.", 1) for name in self._unchanged()}
        added = [each.name for each in self._gradients[steps[0]] if each.told == ADDED]
        return {name: steps for name in added if name not in still}

    def _alone(self) -> dict[str, list[int]]:
        # A gradient may be reduced after it was dumped: then the parameters stay the same.
        return grouped(
            (each.name, step)
            for step, seen in self._gradients.items()
            if any(each.told in REDUCED for each in seen)
            for each in seen
            if each.told == NOT_REDUCED and each.name.removeprefix("Gradient.") in self._parted
        )

    def _unchanged(self) -> dict[str, list[int]]:
        """Return parameters that stand still in two steps or more, with gradients like those of others.

        One that moves later waits on purpose, as the last layer of DINO does for an epoch.
        """
        found: dict[str, list[int]] = defaultdict(list)
        for step, seen in self._updates.items():
            sizes = [each.size for each in seen if each.told != NOT_UPDATED]
            for each in seen if sizes else ():
                is_large = each.size > _CLEAR * statistics.median(sizes)
                if self._last_told[each.name] == each.told == NOT_UPDATED and is_large:
                    found[each.name].append(step)
        return {name: steps for name, steps in found.items() if len(steps) > 1}

    def _lost_updates(self) -> dict[str, list[int]]:
        """Return parameters that alone stood still in a step: a rate of zero is that of most."""
        moved = {
            step
            for step, seen in self._updates.items()
            if sum(each.told != NOT_UPDATED for each in seen) * 2 > len(seen)
        }
        return grouped((name, step) for name, steps in self._lost.items() for step in steps if step in moved)

    def _jumps(self) -> dict[str, list[int]]:
        """Return parameters whose rate is far larger in one step alone, as in no schedule."""
        rates = {
            (step, each.name): rate_of(each.told) for step, seen in self._updates.items() for each in seen
        }

        return grouped(
            (name, step)
            for name, steps in self._told(JUMPED).items()
            for step in steps
            if rates.get((step + 1, name), math.inf) * _FALLS < rates[step, name]
        )

    def _told(self, what: str) -> dict[str, list[int]]:
        """Return the parameters of whose updates this is told, in steps in which it is of most.

        A state of SGD that is lost shows in each parameter: it adds to the update.
        """
        found: dict[str, list[int]] = defaultdict(list)
        for step, seen in self._updates.items():
            marked = [each for each in seen if what in each.told]
            is_sum = what == RESET and all("SGD" in each.told for each in marked)
            least = 1 if is_sum else max(1, (len(seen) + self._unknown[step]) // 2)
            for each in marked if len(marked) > least else ():
                found[each.name].append(step)
        return found


class _AuditTally:
    def __init__(self) -> None:
        self._shares: dict[tuple[bool, str], _Running] = {}
        self._failures: dict[tuple[int, str], AuditFailure] = {}
        self._paths: dict[str, str] = {}
        """By the name of a tensor, its operator."""
        self._patterns: dict[int, _RankPatterns] = defaultdict(_RankPatterns)

    def add(self, tensor: Tensor, checked: CheckedTensor) -> None:
        """Add one tensor; nothing of it is kept but its name."""
        found, key = checked.outcome, (tensor.rank, tensor.name)
        # What an optimizer wrote is seen in the next step.
        step = (tensor.step or 0) - checked.kind.startswith("optimizer")
        self._patterns[tensor.rank].add(step, tensor.name, checked)
        if found.status == "fails" and found.difference is not None:
            new = _failure(tensor, step, checked.kind, found, found.difference)
            earlier = self._failures.setdefault(key, new)
            self._paths[tensor.name] = tensor.op_name
            if earlier is not new:
                what = new.what
                if what != earlier.what:
                    what = f"{earlier.what.partition(';')[0]}; varies"
                steps = (*earlier.steps, step)
                self._failures[key] = replace(earlier, steps=steps, failed=earlier.failed + 1, what=what)
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

    def failures(self, hosts: Mapping[int, str]) -> tuple[AuditFailure, ...]:
        """Return the failures, by first step, rank and order of execution.

        Args:
            hosts: by rank, the host that dumped it.
        """
        told = [each for rank, own in self._patterns.items() for each in own.failures(rank)]
        by_rank = grouped((each.rank, each) for each in self._of_innermost() if not _is_edited(each))
        for rank, own in by_rank.items():
            computed = [each for each in own if each.identity not in ("optimizer", "gradient", *_SHOULD)]
            is_repeated = len({step for each in computed for step in each.steps}) > 1
            # A kernel that is wrong is so in each step, and on each rank.
            if is_repeated and (len(by_rank) < len(hosts) or len({each.what for each in computed}) > 1):
                told += [each for each in own if each not in computed]
                told.append(_of_hardware(computed, hosts[rank]))
            else:
                told += own
        return tuple(sorted(told, key=lambda each: (each.steps[0], each.rank)))

    def _of_innermost(self) -> Iterator[AuditFailure]:
        """Yield the failures, with a module that returns what a function in it gave counted under that."""
        alike = grouped(
            ((each.rank, each.steps, each.what, each.times), each) for each in self._failures.values()
        )
        for same in alike.values():
            paths = [self._paths[each.name] for each in same]
            for each, own in zip(same, paths, strict=True):
                if not any(path.startswith(f"{own}.") for path in paths):
                    around = sum(own.startswith(f"{path}.") for path in paths)
                    yield replace(each, follows=each.follows + around)


def _is_edited(failure: AuditFailure) -> bool:
    """Return whether rows of a parameter are updated otherwise in several steps.

    Clipping by unit, and masks of gradients, change gradients row by row between the backward pass and the
    update: the dump has them as the backward pass left them.
    """
    is_of_rows = failure.identity == "optimizer" and failure.where in ("row", "rows", "block")
    return is_of_rows and len(failure.steps) > 1


def _of_hardware(failures: Sequence[AuditFailure], host: str) -> AuditFailure:
    first = min(failures, key=lambda each: each.steps[0])
    steps = tuple(sorted({step for each in failures for step in each.steps}))
    failed = sum(each.failed for each in failures)
    what = "product" if all(each.identity in PRODUCTS for each in failures) else "output"
    where = f"host {host}, rank {first.rank}" if host else f"rank {first.rank}"
    text = f"{first.what}; {where}: {counted(failed, what)} in {len(steps)} steps: suspect hardware"
    return replace(first, steps=steps, what=text, follows=len(failures) - 1, failed=failed, host=host)


def _failure(
    tensor: Tensor, step: int, kind: str, found: IdentityCheck, shape: DifferenceShape
) -> AuditFailure:
    cause, level = found.named
    return AuditFailure(
        tensor.rank,
        (step,),
        tensor.name,
        kind,
        cause,
        level,
        _SHOULD.get(kind, "") + str(shape),
        found.times if math.isfinite(found.times) else None,
        shape.where,
        shape.how,
        shape.elements,
        shape.size,
        found.told,
        failed=1,
    )


@dataclass(frozen=True, slots=True)
class OperatorError(Plain):
    """The error of an output of an operator, where most was born in it, as shares of its size."""

    name: str
    dtype: str
    rank: int
    step: int
    calls: int
    born: float
    """How far the output is from float64, computed from the stored inputs."""
    units: float
    """`born` in units of roundoff of the type; an exact result that was only rounded has up to 0.58."""
    inherited: float | None
    """What errors of operators before it make of that; None if the store does not tell what they are."""
    total: float
    """How far the output is from what a program in float64 would have made up to here."""
    depth: int
    """How many operators one after another are before it, as far as the store tells."""


@dataclass(frozen=True, slots=True)
class BudgetAnswer(Answer):
    """The errors of operators."""

    noun: ClassVar = "operator"

    store: str
    operators: tuple[OperatorError, ...]
    """Those in which most error was born first, in units of roundoff of their types."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"Error budget: {self.store}"

    def table(self) -> Table[OperatorError]:
        """Return a row for each operator."""
        return Table(
            {
                "units": lambda each: f"{each.units:.3g}",
                "born": lambda each: f"{each.born:.2g}",
                "inherited": lambda each: "" if each.inherited is None else f"{each.inherited:.2g}",
                "total": lambda each: f"{each.total:.2g}",
                "depth": lambda each: str(each.depth),
                "type": lambda each: each.dtype,
                "rank": lambda each: str(each.rank),
                "step": lambda each: str(each.step),
                "calls": lambda each: str(each.calls),
                "name": lambda each: each.name,
            },
            self.operators,
            self.noun,
            right=("units", "born", "inherited", "total", "depth", "rank", "step", "calls"),
            spare=("calls", "depth", "type"),
        )

    def report(self) -> Iterator[Part]:
        """Yield the table, and what its numbers are."""
        yield self.table()
        yield Note("shares of the root mean square of the output; units: of roundoff of its type", "")


def audit_budget(
    store: Catalog, rank: Ranks = None, step: Steps = None, *, include_partial: Partial = False
) -> BudgetAnswer:
    """Say how much error was born in each operator, and how much it inherited.

    Born: its output against its definition in float64, computed from the stored inputs. Inherited: what the
    errors of all operators before it make of it, as far as the store tells what their inputs were computed
    from. Of several calls of an operator, over ranks and steps, the one counts in which most was born.

    Memory: the tensors of the largest call, in float64, some times; and of each output that is still to be
    read in the step, what it would be in float64. Time: each operator is computed twice.

    Raises:
        UsageError: a rank or step is not in the store, or no step is complete.
        DamagedStore: no step can be read.
    """
    return ask_of_undamaged(take_snapshot(store, rank, step, include_partial=include_partial), _budget_of)


def _budget_of(snapshot: Snapshot) -> BudgetAnswer:
    worst: dict[str, OperatorError] = {}
    for number in snapshot.steps:
        for rank, opened in snapshot.of_step(number).items():
            for error in StepBudget(opened).errors():
                tensor = Tensor(snapshot.chosen[StepKey(rank, number)], error.row)
                name = tensor.name.partition("#")[0]
                found = OperatorError(
                    name=name,
                    dtype=tensor.dtype,
                    rank=rank,
                    step=number,
                    calls=0,
                    born=error.born,
                    units=error.units,
                    inherited=error.inherited if error.depth else None,
                    total=error.total,
                    depth=error.depth,
                )
                known = worst.get(name, found)
                larger = known if known.units >= found.units else found
                worst[name] = replace(larger, calls=known.calls + 1)
            opened.forget_tables()
    ordered = tuple(sorted(worst.values(), key=lambda each: -each.units))
    return BudgetAnswer(snapshot.store.url, ordered, snapshot.left_out)


QUESTION = Question(
    audit,
    (
        "audit run.zarr",
        "audit run.zarr --step 40 --rank 3 --html audit.html",
        "audit run.zarr --budget --step 40",
    ),
    noun="failure",
    modes=(
        Mode(
            "budget",
            Option("Say how much error was born in each operator, and how much it inherited."),
            default=False,
            ask=lambda store, _, **asked: audit_budget(store, **asked),
            takes=frozenset({"rank", "step", "include_partial", "html"}),
        ),
    ),
    has_page=True,
)
