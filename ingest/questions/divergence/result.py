"""The answer of a comparison of replicas."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ingest.identities.difference import Level
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.questions.question import Answer, Note, Part, Table, Texts
from ingest.reader.anatomy import BitDifference
from ingest.reader.choice import format_ranges, named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import Plain, counted
from workers.store.consolidated.blocks import TensorKey

#: What is said of a store in which nobody is known to be a replica.
NOTHING_COMPARED = (
    "nothing could be compared: no two ranks agree on a parameter or on the output of a collective, as where "
    "each has its part or its stage"
)
#: Statistics to print, the most telling first, and how many.
_TELLING = ("nan_count", "pos_inf_count", "neg_inf_count", "count", "l2_norm", "max", "min", "mean", "std")
_MAX_VALUES = 4


@dataclass(frozen=True, slots=True)
class Group(Plain):
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
class Difference(Plain):
    """One tensor that ranks must agree on and do not."""

    hidden: ClassVar = ("key",)

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
        names = ("name", "net", "graph", "op_type", "op_name", "io", "slot", "occurrence")
        return {name: getattr(self.key, name) for name in names} | Plain.to_dict(self)


@dataclass(frozen=True, slots=True)
class Odd(Plain):
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
    after: str = ""
    """What is wrong before, and may have made this: `missing reduction in step 2`; "" if nothing is known."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        values = {name: {"odd": odd, "others": others} for name, (odd, others) in self.values.items()}
        return {**Plain.to_dict(self), "values": values}


@dataclass(frozen=True, slots=True)
class Missing(Plain):
    """Something that some ranks have and others of their group do not."""

    hidden: ClassVar = ("keys",)

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


@dataclass(frozen=True, slots=True)
class BrokenOperator(Plain):
    """A call of an operator with equal inputs on several ranks, and unequal outputs."""

    hidden: ClassVar = ("rows",)

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
    rows: tuple[int, int] = field(repr=False)
    """The first of them, in the order of execution of the first of `ranks`, and of another one."""
    level: Level = Level.SHOWN
    """Equal inputs and unequal outputs are shown; which of two ranks it is may be open."""
    bits: BitDifference | None = None
    """Which elements and bits of the first of them differ, between the first of `ranks` and another one; None
    if their elements are not in the store."""


@dataclass(frozen=True, slots=True, repr=False)
class Divergence(Answer):
    """What replicas must agree on, and where they do not."""

    noun: ClassVar = "difference"
    also: ClassVar = ("agree",)

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
    apart: tuple[int, ...] = ()
    """Steps in which ranks train apart until their parameters are made equal again, as in local SGD."""

    @property
    def agree(self) -> bool:
        """Whether all replicas hold the same, nothing is missing or misplaced, and no operator broke."""
        return not self.is_alarm

    @property
    def is_alarm(self) -> bool:
        """Whether anything differs, is missing, or is held wrongly, or an operator broke."""
        return bool(self.differences or self.missing or self.broken or self.misplaced)

    @property
    def headline(self) -> str:
        """Whether replicas agree, or how much is wrong, and where it was looked."""
        same = "replicas agree" if self.groups else "nothing could be compared"
        what = same if self.agree else counted(len(self.differences), "difference")
        more = f", {counted(len(self.broken), 'broken operator')}" if self.broken else ""
        more += f", {counted(len(self.misplaced), 'layout finding')}" if self.misplaced else ""
        more += f", {len(self.missing)} missing" if self.missing else ""
        return f"{what}{more}, ranks {format_ranges(self.ranks)}, steps {format_ranges(self.steps)}"

    def table(self) -> Table[Difference]:
        """Return a row for each tensor and odd rank."""
        return Table(
            {
                "rank": lambda row: (
                    format_ranges(row.ranks) if row.has_majority else " or ".join(map(str, row.ranks))
                ),
                "first": lambda row: str(row.first_step),
                "last": lambda row: str(row.last_step),
                "steps": lambda row: str(row.steps),
                "healed": lambda row: "yes" if row.healed else "no",
                "why": lambda row: (
                    row.why
                    + " (statistics)" * (row.by == "statistics")
                    + " (bits only)" * row.same_statistics
                ),
                "name": lambda row: row.name,
            },
            self.differences,
            self.noun,
            right=("first", "last", "steps"),
            spare=("healed", "steps", "last"),
        )

    def _missing_table(self) -> Table[Missing]:
        return Table(
            {
                "rank": lambda row: format_ranges(row.ranks),
                "state": lambda row: row.state,
                "what": lambda row: row.what,
                "first": lambda row: "-" if row.first_step is None else str(row.first_step),
                "last": lambda row: "-" if row.last_step is None else str(row.last_step),
                "steps": lambda row: str(row.steps) if row.steps else "-",
                "others": lambda row: format_ranges(row.others),
                "name": lambda row: row.name or "-",
            },
            self.missing,
            "missing or extra thing",
            right=("first", "last", "steps"),
            spare=("steps", "others", "last"),
        )

    def _groups_table(self) -> Table[Group]:
        return Table(
            {
                "group": lambda group: format_ranges(group.ranks),
                "how": lambda group: group.how,
                "tensors": lambda group: str(group.tensors),
                "compared": lambda group: str(group.compared),
                "agreed": lambda group: str(group.agreed),
                # Rounded down: 100 means all.
                "share": lambda group: (
                    f"{group.agreed * 1000 // group.compared / 10:g}%" if group.compared else "-%"
                ),
            },
            self.groups,
            "group",
            right=("tensors", "compared", "agreed", "share"),
        )

    def report(self) -> Iterator[Part]:
        """Yield what people read: causes first, then tensors, what is missing, and the groups."""
        if self.agree and self.groups:
            steps = format_ranges(self.steps)
            yield f"replicas agree: ranks {format_ranges(self.ranks)}, steps {steps}"
        if self.misplaced:
            yield Texts([*map(_misplaced_text, self.misplaced)], "layout finding")
            step = self.misplaced[0].step
            yield f"  see     dump-ingest layout {shlex.quote(self.store)} --step {step}"
        if self.broken:
            yield Texts([*map(_broken_text, self.broken)], "broken operator")
        suspects = {odd.ranks[0] for odd in self.odd if odd.has_majority}
        yield from (_odd_text(odd, suspects) for odd in self.odd)
        if self.differences:
            yield ""
            yield self.table()
        if self.missing:
            yield "" if self.odd else "replicas do not hold the same tensors:"
            yield self._missing_table()
        if self.groups:
            yield ""
            yield self._groups_table()
        yield from (Note(note) for note in self.notes)
        if self.agree and not self.groups:
            yield Note(f"{NOTHING_COMPARED}\n  If some are replicas, name them with --group.")


def _misplaced_text(finding: LayoutFinding) -> str:
    more = counted(finding.follows, "more tensor")
    after = f"\n  after   {more} with the same cause, or differing" if finding.follows else ""
    return f"{finding}\n  {finding.level}   {finding.text}{after}"


def _broken_text(broken: BrokenOperator) -> str:
    which = named_ranges("rank", broken.ranks)
    where = f"on {which}" if broken.has_majority else f"on one of {which} (no majority says which)"
    equal = "its input is equal" if broken.inputs == 1 else f"its {broken.inputs} inputs are equal"
    bits = "" if broken.bits is None else f"\n  {broken.bits}"
    return (
        f"{broken.op_type} ({broken.op_name}) broke in step {broken.step} {where}\n"
        f"  {equal}, and {', '.join(broken.outputs)} differ{'s' * (len(broken.outputs) == 1)}{bits}"
    )


def _odd_text(odd: Odd, suspects: Collection[int]) -> str:
    """Describe how a rank differs from the rest of its group.

    Args:
        odd: the rank, or all ranks that it may be.
        suspects: ranks that a majority showed to be odd in other tensors.
    """
    first = odd.first
    basis = ", bits differ and no statistic does: other NaNs, -0 for 0, or another order"
    basis = (
        ", by statistics: no elements were dumped"
        if first.by == "statistics"
        else basis * first.same_statistics
    )
    lines = [_odd_headline(odd, suspects), f"  first   {first.name}  ({first.why}{basis})"]
    if odd.source:
        lines.append(f"  file    {odd.source}")
    if odd.values:
        names = [name for name in _TELLING if name in odd.values] or list(odd.values)
        instead = "instead of" if odd.has_majority else "or"
        # With all digits: a flipped bit may change only the last.
        pairs = {name: [repr(each).removesuffix(".0") for each in odd.values[name]] for name in names}
        texts = (f"{name} {ours} {instead} {theirs}" for name, (ours, theirs) in pairs.items())
        lines.append(f"  values  {', '.join([*texts][:_MAX_VALUES])}")
    if odd.after:
        lines.append(f"  after   {odd.after}, above: it may follow from that")
    elif odd.evidence:
        cause = f"{odd.cause} ({odd.level})" if odd.cause else "cause not determined (open)"
        lines.append(f"  cause   {cause}: {odd.evidence}")
    end = f"agrees again after step {odd.last_step}" if odd.healed else f"up to step {odd.last_step}"
    lines.append(f"  since   {counted(odd.tensors, 'tensor')} in {counted(odd.steps, 'step')}, {end}")
    return "\n".join(lines)


def _odd_headline(odd: Odd, suspects: Collection[int]) -> str:
    since = f"is off since step {odd.first_step}"
    if odd.has_majority:
        agree = f"agree{'s' * (len(odd.others) == 1)}"
        return f"rank {odd.ranks[0]} {since} ({named_ranges('rank', odd.others)} {agree})"
    elsewhere = {*suspects} & {*odd.ranks}
    suspect = f"; off elsewhere: rank {format_ranges(elsewhere)}" if elsewhere else ""
    return f"one of ranks {format_ranges(odd.ranks)} {since} (no majority says which{suspect})"
