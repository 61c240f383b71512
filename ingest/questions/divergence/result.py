"""What a comparison of replicas found."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ingest.reader.snapshot import LeftOut
from workers.store.blocks import TensorKey

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that must agree on some tensors."""

    ranks: tuple[int, ...]
    how: str
    """`given`, or `inferred` from what agrees."""
    tensors: int
    """Tensors that must agree in it."""
    compared: int
    """Tensors and steps that were compared."""
    agreed: int
    """How many of them agree: how sure an inferred group is."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor in which ranks are off."""

    key: TensorKey = field(repr=False)
    ranks: tuple[int, ...]
    """The odd rank; where there is no majority, all ranks that do not agree."""
    has_majority: bool
    others: tuple[int, ...]
    """The ranks that agree in its first step; none where there is no majority."""
    why: str
    """Why it must agree: `collective output`, `optimizer input`, `parameter` or `agreed before`."""
    first_step: int
    last_step: int
    steps: int
    """In how many steps it differs."""
    healed: bool
    """Whether the ranks agree again in a later step."""
    by: str
    """What was compared: `digest`, or `statistics` where only these were dumped."""
    same_statistics: bool
    """In the first step: the bits differ, and no statistic does, as with other NaNs, or -0 for 0."""

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.key.name

    def to_dict(self) -> dict[str, Any]:
        """Return it as a flat dictionary of plain values, and lists of ranks."""
        row = {"name": self.name, "net": self.key.net, "graph": self.key.graph, "op_type": self.key.op_type}
        row |= {"op_name": self.key.op_name, "io": self.key.io}
        rest = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "key"}
        return {**row, "slot": self.key.slot, "occurrence": self.key.occurrence, **_listed(rest)}


@dataclass(frozen=True, slots=True)
class Odd:
    """A rank that is off, or several of which one is: where it began, and what came of it."""

    ranks: tuple[int, ...]
    """The odd rank; where there is no majority, all ranks that do not agree."""
    has_majority: bool
    others: tuple[int, ...]
    """The ranks that agree; none where there is no majority."""
    first_step: int
    first: Difference
    """The first tensor of that step that differs, in order of execution."""
    source: str
    """The dump file of that tensor, of the first of `ranks`."""
    values: dict[str, tuple[float, float]]
    """The statistics of that tensor that differ: of the first of `ranks`, and of the others."""
    tensors: int
    """How many tensors differ since."""
    steps: int
    """In how many steps any does."""
    last_step: int
    healed: bool
    """Whether all of them agree again in later steps."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dictionary of plain values; NaN is None."""
        rest = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values = {
            name: {"odd": _plain(odd), "others": _plain(others)}
            for name, (odd, others) in self.values.items()
        }
        return {**_listed(rest), "first": self.first.to_dict(), "values": values}


@dataclass(frozen=True, slots=True)
class Missing:
    """What some ranks have and others of their group have not."""

    what: str
    """`rank`, `step`, `operator` or `tensor`."""
    state: str
    """Of `ranks`: `missing` it, or `extra` where most do not have it; `only here` where as many do."""
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    """The ranks of the group of which the opposite is true."""
    name: str
    """Of the operator or tensor; "" for steps and ranks."""
    graph: str
    tensors: int
    """How many tensors it is about."""
    first_step: int | None
    last_step: int | None
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as a flat dictionary of plain values, and lists of ranks."""
        return _listed(asdict(self))


@dataclass(frozen=True, slots=True)
class Divergence:
    """What must agree between replicas, and where it does not."""

    store: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    groups: tuple[Group, ...]
    odd: tuple[Odd, ...]
    """By first step, then order of execution."""
    differences: tuple[Difference, ...]
    """One for each tensor and odd rank, by first step, then order of execution."""
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]
    """What should be known to judge the answer."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def agree(self) -> bool:
        """Whether all replicas hold the same, and nothing is missing."""
        return not self.differences and not self.missing

    def to_dict(self) -> dict[str, Any]:
        """Return everything as one object of plain values."""
        return {
            "store": self.store,
            "agree": self.agree,
            "ranks": list(self.ranks),
            "steps": list(self.steps),
            "groups": [_listed(asdict(one)) for one in self.groups],
            "odd": [one.to_dict() for one in self.odd],
            "differences": [one.to_dict() for one in self.differences],
            "missing": [one.to_dict() for one in self.missing],
            "notes": list(self.notes),
            "left_out": [
                {"rank": one.key.rank, "step": one.key.step, "reason": one.reason} for one in self.left_out
            ],
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return the differences as a table: one row for each tensor and odd rank."""
        import pandas as pd

        columns = [*Difference.__dataclass_fields__]
        columns[:1] = ["name", "net", "graph", "op_type", "op_name", "io", "slot", "occurrence"]
        return pd.DataFrame([one.to_dict() for one in self.differences], columns=columns)


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
