"""How much error was born in each operator, and how much it inherited: recomputed in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ingest.identities.budget import StepBudget
from ingest.questions.question import Answer, Note, Part, Partial, Ranks, Steps, Table
from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import LeftOut, Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.tensor import Tensor
from ingest.reader.text import Plain
from workers.model import StepKey


@dataclass(frozen=True, slots=True)
class OperatorError(Plain):
    """The error of an output of an operator, where most was born in it, as shares of its size."""

    name: str
    dtype: str
    rank: int
    step: int
    calls: int
    """How many calls there are, over ranks and steps."""
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
                known = worst.get(name)
                calls = 1 + (known.calls if known is not None else 0)
                if known is not None and known.units >= error.units:
                    worst[name] = replace(known, calls=calls)
                else:
                    worst[name] = OperatorError(
                        name=name,
                        dtype=tensor.dtype,
                        rank=rank,
                        step=number,
                        calls=calls,
                        born=error.born,
                        units=error.units,
                        inherited=error.inherited if error.depth else None,
                        total=error.total,
                        depth=error.depth,
                    )
            opened.forget_tables()
    ordered = tuple(sorted(worst.values(), key=lambda each: -each.units))
    return BudgetAnswer(snapshot.store.url, ordered, snapshot.left_out)
