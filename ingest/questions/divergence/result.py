"""The answer of a comparison of replicas."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ingest.identities.evidence import Level
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.reader import notebook
from ingest.reader.compare_bits import BitDifference
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted, printable
from workers.store.consolidated.blocks import TensorKey
from workers.store.strict_json import finite_or_none

if TYPE_CHECKING:
    import pandas as pd

#: What is said of a store in which nobody is known to be a replica.
NOTHING_COMPARED = (
    "nothing could be compared: no two ranks agree on a parameter or on the output of a collective"
)


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that must agree on some tensors."""

    ranks: tuple[int, ...]
    how: str
    """`given`, `told` by the places of the ranks in the mesh, or `inferred` from what agrees."""
    tensors: int
    """Tensors that must agree in it."""
    compared: int
    """Tensors and steps that were compared."""
    agreed: int
    """How many of these agree: it tells how sure an inferred group is."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor that ranks must agree on and do not."""

    key: TensorKey = field(repr=False)
    ranks: tuple[int, ...]
    """The odd rank; without a majority, all ranks that do not agree."""
    has_majority: bool
    others: tuple[int, ...]
    """The ranks that agree in the first of these steps; empty without a majority."""
    why: str
    """Why it must agree: `collective output`, `optimizer input`, `parameter` or `agreed before`."""
    first_step: int
    last_step: int
    steps: int
    """The number of steps in which it differs."""
    healed: bool
    """Whether the ranks agree again in a later step."""
    by: str
    """What was compared: `digest`, or `statistics` if only these were dumped."""
    same_statistics: bool
    """Whether the bits differ in the first step and no statistic does, as with other NaNs, or -0 for 0."""

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.key.name

    def to_dict(self) -> dict[str, Any]:
        """Return a flat dictionary of plain values and lists of ranks."""
        row = {"name": self.name, "net": self.key.net, "graph": self.key.graph, "op_type": self.key.op_type}
        row |= {"op_name": self.key.op_name, "io": self.key.io}
        rest = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "key"}
        return {**row, "slot": self.key.slot, "occurrence": self.key.occurrence, **_listed(rest)}


@dataclass(frozen=True, slots=True)
class Odd:
    """A rank that is off, or several of which one is: where it began, and how far it goes."""

    ranks: tuple[int, ...]
    """The odd rank; without a majority, all ranks that do not agree."""
    has_majority: bool
    others: tuple[int, ...]
    """The ranks that agree; empty without a majority."""
    first_step: int
    first: Difference
    """The first tensor that differs in that step, in order of execution."""
    source: str
    """The dump file of that tensor on the first of `ranks`."""
    values: dict[str, tuple[float, float]]
    """The statistics of that tensor that differ: on the first of `ranks`, and on the others."""
    tensors: int
    """How many tensors differ from then on."""
    steps: int
    """The number of steps in which any tensor differs."""
    last_step: int
    healed: bool
    """Whether all of them agree again in later steps."""
    cause: str = ""
    """`stale value`, `flipped bit`, `one element`, `one row`, ...; "" if values do not show it."""
    level: Level = Level.OPEN
    """What backs the cause, or which rank it is; `open` without a cause."""
    evidence: str = ""
    """What shows it, or what differs: `1 of 4096 elements, element [3, 17]: bit 12`."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of plain values; NaN is None."""
        rest = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values = {
            name: {"odd": finite_or_none(odd), "others": finite_or_none(others)}
            for name, (odd, others) in self.values.items()
        }
        return {**_listed(rest), "first": self.first.to_dict(), "values": values}


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that some ranks have and others of their group do not."""

    what: str
    """`rank`, `step`, `operator` or `tensor`."""
    state: str
    """`missing`: `ranks` lack it. `extra`: `ranks` have it and most others do not. `only here`: `ranks` have
    it and as many others do not."""
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    """The other ranks of the group, for which the opposite is true."""
    name: str = ""
    """The name of the operator or tensor; "" for steps and ranks."""
    graph: str = ""
    tensors: int = 0
    """The number of tensors; 0 for steps and ranks."""
    first_step: int | None = None
    """None for ranks."""
    last_step: int | None = None
    steps: int = 0
    """In how many steps; 0 for ranks."""
    keys: tuple[TensorKey, ...] = field(default=(), repr=False)
    """The tensors; empty for steps and ranks."""

    def to_dict(self) -> dict[str, Any]:
        """Return a flat dictionary of plain values and lists of ranks."""
        return _listed({name: getattr(self, name) for name in self.__dataclass_fields__ if name != "keys"})


@dataclass(frozen=True, slots=True)
class BrokenOperator:
    """A call of an operator with equal inputs on several ranks, and unequal outputs."""

    step: int
    ranks: tuple[int, ...]
    """The odd rank, or ranks; without a majority, all that had these inputs."""
    has_majority: bool
    others: tuple[int, ...]
    """The ranks whose outputs agree; empty without a majority."""
    net: str
    graph: str
    op_type: str
    op_name: str
    occurrence: int
    inputs: int
    """How many inputs were compared."""
    outputs: tuple[str, ...]
    """The names of the outputs that differ."""
    place: int = field(repr=False)
    """The place of the first of them in the order of execution."""
    level: Level = Level.SHOWN
    """Equal inputs and unequal outputs are shown; which of two ranks it is may be open."""
    bits: BitDifference | None = None
    """Which elements and bits of the first of them differ, between the first of `ranks` and another one; None
    if their elements are not in the store."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        rest = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "place"}
        return {**_listed(rest), "bits": None if self.bits is None else self.bits.to_dict()}


@dataclass(frozen=True, slots=True)
class Divergence:
    """What replicas must agree on, and where they do not."""

    store: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    groups: tuple[Group, ...]
    odd: tuple[Odd, ...]
    """In order of first step, then execution."""
    differences: tuple[Difference, ...]
    """One for each tensor and odd rank, in order of first step, then execution."""
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]
    """What should be known to judge the answer."""
    left_out: tuple[LeftOut, ...] = ()
    broken: tuple[BrokenOperator, ...] = ()
    """Operators with equal inputs and unequal outputs, by step and order of execution."""
    misplaced: tuple[LayoutFinding, ...] = ()
    """What ranks hold and should not, as `layout` finds it, by step and order of execution."""

    def __repr__(self) -> str:
        same = "replicas agree" if self.groups else "nothing could be compared"
        what = same if self.agree else counted(len(self.differences), "difference")
        more = f", {counted(len(self.broken), 'broken operator')}" if self.broken else ""
        more += f", {counted(len(self.misplaced), 'layout finding')}" if self.misplaced else ""
        more += f", {len(self.missing)} missing" if self.missing else ""
        where = f"ranks {format_ranges(self.ranks)}, steps {format_ranges(self.steps)}"
        return printable(f"<Divergence {self.store}: {what}{more}, {where}>")

    @property
    def agree(self) -> bool:
        """Whether all replicas hold the same, nothing is missing or misplaced, and no operator broke."""
        return not (self.differences or self.missing or self.broken or self.misplaced)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as one dictionary of plain values."""
        return {
            "store": self.store,
            "agree": self.agree,
            "ranks": list(self.ranks),
            "steps": list(self.steps),
            "groups": [_listed(asdict(group)) for group in self.groups],
            "odd": [odd.to_dict() for odd in self.odd],
            "differences": [difference.to_dict() for difference in self.differences],
            "missing": [missing.to_dict() for missing in self.missing],
            "broken": [broken.to_dict() for broken in self.broken],
            "misplaced": [finding.to_dict() for finding in self.misplaced],
            "notes": list(self.notes),
            "left_out": [left.to_dict() for left in self.left_out],
        }

    def _repr_html_(self) -> str:
        groups = "; ".join(format_ranges(group.ranks) for group in self.groups)
        state = "agree" if self.agree else "differ"
        broke = "; ".join(
            f"{call.op_type} ({call.op_name}) broke in step {call.step} on rank {format_ranges(call.ranks)}"
            for call in self.broken[:3]
        )
        misplaced = "; ".join(str(finding) for finding in self.misplaced[:3])
        rows = (
            (
                format_ranges(difference.ranks),
                difference.name,
                difference.why,
                difference.first_step,
                difference.last_step,
                difference.steps,
            )
            for difference in self.differences
        )
        return notebook.table(
            f"Replicas {state}: {self.store}",
            ("rank", "tensor", "why", "first step", "last step", "steps"),
            rows,
            total=len(self.differences),
            remark=f"{broke or misplaced or 'groups of ranks: ' + (groups or 'none')}; "
            f"{len(self.missing)} missing",
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return the differences as a table: one row for each tensor and odd rank."""
        import pandas as pd  # deferred: pandas takes 0.4 s to import

        columns = [*Difference.__dataclass_fields__]
        columns[:1] = ["name", "net", "graph", "op_type", "op_name", "io", "slot", "occurrence"]
        return pd.DataFrame([difference.to_dict() for difference in self.differences], columns=columns)


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}
