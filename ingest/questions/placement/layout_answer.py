"""What `layout` answers: how the ranks of one run hold its tensors, and what looks like a mistake."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ingest.identities.evidence import Level
from ingest.reader import notebook
from ingest.reader.ranges import format_ranges, named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted


@dataclass(frozen=True, slots=True)
class PlacedKind:
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.name,
            "ranks": list(self.ranks),
            "placement": self.placement,
            "why": self.why,
            "tensors": self.tensors,
        }


@dataclass(frozen=True, slots=True)
class LayoutFinding:
    """What ranks hold and should not: one for each cause, where it is seen first."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **asdict(self),
            "ranks": list(self.ranks),
            "cause": "" if self.level is Level.OPEN else self.kind,
        }


@dataclass(frozen=True, slots=True)
class RunLayout:
    """How the ranks of one run hold its tensors."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "store": self.store,
            "ranks": list(self.ranks),
            "steps": list(self.steps),
            "replicas": [list(group) for group in self.replicas],
            "kinds": [kind.to_dict() for kind in self.kinds],
            "findings": [finding.to_dict() for finding in self.findings],
            "removed": self.removed,
        }

    def __repr__(self) -> str:
        counts = f"{counted(len(self.kinds), 'kind')} of tensors, {counted(len(self.findings), 'finding')}"
        return f"<RunLayout {self.store}: {counts}>"

    def _repr_html_(self) -> str:
        rows = [
            (kind.name, format_ranges(kind.ranks), kind.placement, kind.why, kind.tensors)
            for kind in self.kinds[: notebook.MAX_ROWS]
        ]
        columns = ("tensors like", "ranks", "layout", "known by", "tensors")
        remark = counted(len(self.findings), "finding")
        return notebook.table(f"layout of {self.store}", columns, rows, total=len(self.kinds), remark=remark)
