"""What `layout` answers: how the ranks of one run hold its tensors, and what looks like a mistake."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from ingest.identities.difference import Level
from ingest.questions.question import Answer, Note, Part, Table
from ingest.reader.choice import format_ranges, named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import Plain, counted


@dataclass(frozen=True, slots=True)
class PlacedKind(Plain):
    """Tensors of one kind: the same operator in all layers and steps, held alike by the same ranks."""

    name: str
    """The name of the first of them."""
    ranks: tuple[int, ...]
    """The ranks that have a piece."""
    placement: str
    """`replicated`, `shard 0`, `partial sum`, ...; `replicated in 0-1; 2-3`; `each rank its own`; or `?`."""
    why: str
    """`told` by the dump, `equal bytes`, or which tensor it is put together in."""
    tensors: int


@dataclass(frozen=True, slots=True)
class LayoutFinding(Plain):
    """What ranks hold and should not: one for each cause, where it is seen first."""

    also: ClassVar = ("cause",)

    step: int
    ranks: tuple[int, ...]
    """The ranks that it is about."""
    name: str
    kind: str
    """The cause: `missing reduction`, `doubled reduction`, `factor`, `wrong group`, `bias on every rank`,
    `wrong shard`, `optimizer state out of step`, ...; `gradients differ` if it is not known."""
    text: str
    """The identity of stored values that shows it, with its numbers."""
    level: Level = Level.SHOWN
    follows: int = 0
    """How many more tensors, and steps of this one, have the same cause or differ as a consequence."""

    def __str__(self) -> str:
        """Describe the mistake in one line: what is wrong with which tensor, where."""
        return f"{self.kind} in step {self.step} on {named_ranges('rank', self.ranks)}: {self.name}"

    @property
    def cause(self) -> str:
        """Its kind, if values show it or make it likely; "" if not."""
        return "" if self.level is Level.OPEN else self.kind


@dataclass(frozen=True, slots=True, repr=False)
class RunLayout(Answer):
    """How the ranks of one run hold its tensors."""

    noun: ClassVar = "tensor kind"

    store: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    kinds: tuple[PlacedKind, ...]
    """In order of execution."""
    findings: tuple[LayoutFinding, ...]
    """In order of step and execution."""
    replicas: tuple[tuple[int, ...], ...]
    """Ranks that hold the same parameters; `divergence` takes them as its groups."""
    left_out: tuple[LeftOut, ...] = field(default=(), repr=False)
    removed: int = 0
    """Tensors, counted in each step, that stay open because their elements were removed from the store."""

    @property
    def is_alarm(self) -> bool:
        """Whether values show a mistake."""
        return bool(self.findings)

    @property
    def headline(self) -> str:
        """How much is known, and how much looks wrong."""
        return f"{counted(len(self.kinds), self.noun)}, {counted(len(self.findings), 'finding')}"

    def table(self) -> Table[PlacedKind]:
        """Return a row for each kind of tensor."""
        return Table(
            {
                "tensors like": lambda kind: kind.name,
                "ranks": lambda kind: format_ranges(kind.ranks),
                "layout": lambda kind: kind.placement,
                "known by": lambda kind: kind.why,
                "tensors": lambda kind: str(kind.tensors),
            },
            self.kinds,
            self.noun,
            right=("tensors",),
            spare=("tensors", "known by"),
        )

    def report(self) -> Iterator[Part]:
        """Yield how tensors are held, the command that compares replicas, and what looks wrong."""
        yield self.table()
        if self.replicas:
            groups = " ".join(f"--group {format_ranges(group).replace(' ', '')}" for group in self.replicas)
            command = f"dump-ingest divergence {shlex.quote(self.store)} {groups}"
            yield Note(f"ranks with the same parameters: {command}", "")
        if self.removed:
            yield Note(
                f"{counted(self.removed, 'tensor')} that differ from rank to rank: elements are removed. "
                "`dump-ingest compare` with a run that has them whole puts them together, by marginals"
            )
        if self.findings:
            columns: dict[str, Callable[[LayoutFinding], str]] = {
                "step": lambda finding: str(finding.step),
                "ranks": lambda finding: format_ranges(finding.ranks),
                "finding": lambda finding: finding.kind,
                "level": lambda finding: finding.level,
                "after": lambda finding: str(finding.follows),
                "tensor": lambda finding: finding.name,
                "why": lambda finding: finding.text,
            }
            yield ""
            yield Table(columns, self.findings, "finding", right=("after",), spare=("after",))
