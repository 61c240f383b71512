"""Finds where replicas stop agreeing, from digests alone: no payload is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from ingest.identities.difference import Level
from ingest.questions.choosing import empty_choice_error
from ingest.questions.divergence.absent import (
    absent_ranks,
    absent_steps,
    absent_tensors,
    ranks_elsewhere,
)
from ingest.questions.divergence.agreement import AgreementOfRanks, observe
from ingest.questions.divergence.broken_operators import broken_operators
from ingest.questions.divergence.differences import DifferenceFinder, Differing, ordered
from ingest.questions.divergence.expectations import (
    Expectations,
    Partition,
    history_of,
    stage_partitions,
    told_partitions,
)
from ingest.questions.divergence.result import Divergence, Group, Missing, Odd
from ingest.questions.placement.batches import Batches
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.questions.placement.replicas import ReplicaCounts
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from ingest.questions.question import Option, Partial, Question, Ranks, Steps
from ingest.reader.catalog import Catalog
from ingest.reader.choice import format_ranges, named_ranges
from ingest.reader.mesh import Coordinates, replica_groups
from ingest.reader.operator_kinds import is_numbered
from ingest.reader.snapshot import PARTIAL_HINT, Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import BlockFilter, FilterFields
from ingest.reader.text import counted
from workers.errors import UsageError
from workers.rules.names import parse_range
from workers.store.consolidated.blocks import TensorKey

#: Inferred groups backed by less than this share of the largest group's tensors are not checked for missing
#: tensors.
_SUPPORT = 0.1
#: Odd ranks of which it is looked at what their step computed.
_SUSPECTS = 2
_ALONE_HINT = "Choose two ranks or more; `audit` looks within one."
_GROUP_HINT = "For example: 0-7, or 0,2,4."
_MAX_RANKS = 1_000_000
#: Names that a note spells out.
_SHOWN = 3
#: Why tensors that replicas can share are not compared.
_NEVER = (
    "never agreed, and cannot be compared: batches, or parts of a whole of which each rank has its own, or "
    "what differs from the first step on"
)
_SELDOM = (
    "agreed in some steps and not in others, and cannot be compared: too seldom, or on at most two different "
    "values, which happens by chance"
)
_APART = (
    "all parameters part and meet together, and no gradient is reduced before they part, as in local SGD: "
    "{}, between two meetings, are not compared"
)
#: Kinds of tensors that replicas should share judging by the name alone.
_NAMED = (SlotKind.COLLECTIVE, SlotKind.OPTIMIZER, SlotKind.PARAMETER)


def _group(text: str) -> set[int]:
    """Return the ranks of a text such as `0-7` or `0,2,4-6`.

    Raises:
        ValueError: it is not one.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        parsed = parse_range(part)
        if parsed is None or parsed[1] >= _MAX_RANKS:
            raise ValueError(f"{text!r} is not a group of ranks. {_GROUP_HINT}")
        ranks |= set(range(parsed[0], parsed[1] + 1))
    return ranks


_GroupsOption: TypeAlias = Annotated[
    Iterable[Iterable[int]] | None,
    Option(
        "Replicas, such as 0-7 or 0,2,4; may be repeated. Default: by the mesh, or inferred.",
        "RANKS",
        flag="--group",
        short="-g",
        kind=_group,
        is_several=True,
    ),
]


def divergence(
    store: Catalog,
    groups: _GroupsOption = None,
    *,
    rank: Ranks = None,
    step: Steps = None,
    include_partial: Partial = False,
    layout: bool = True,
    **conditions: Unpack[FilterFields],
) -> Divergence:
    """Find tensors on which replicas disagree: the first step and tensor, and the odd rank.

    It compares digests: of outputs of all-reduce, all-gather and broadcast; of what optimizers read; of
    parameters, and inputs that hold the bytes of one; and of any other tensor that agreed in the three steps
    before. Activations come from other data on each rank, and are never expected to agree.

    Where digests and means suggest that ranks hold a tensor as they should not (a wrong shard, a missing
    reduction, a bias on every rank, an optimizer state out of step), it reads some tensors of the first of
    these steps, as `layout` does.

    Exits with 5 if something differs, is missing, or is held wrongly.

    Returns:
        What differs; without `layout`, elements are read only of what is off. Replicas that are not given are
        the ranks that differ in the data-parallel axis alone, if `store.coordinates` tells; or those that
        hold the same parameters, as `layout` finds them, if these are the groups of a mesh; or else they are
        inferred from what agrees. Memory: what `StepStatistics` takes, and 10 bytes for each tensor and step;
        for `layout`, one step of all ranks.

    Raises:
        UsageError: a rank, step, group or condition fits nothing, or the store has only one rank.
        DamagedStore: no step can be read.
    """
    given = None if groups is None else _checked_groups(groups)
    chosen = take_snapshot(store, rank, step, include_partial=include_partial)
    return ask_of_undamaged(
        chosen,
        lambda snapshot: _DivergenceSearch(snapshot, given).run(
            conditions, missed_ranks=rank is None, layout=layout
        ),
    )


class _DivergenceSearch:
    def __init__(self, snapshot: Snapshot, given: list[list[int]] | None) -> None:
        if len(snapshot.ranks) < 2:
            raise UsageError(
                f"{snapshot.store.url}: only rank {snapshot.ranks[0]} has complete steps of those that are "
                "asked for, so it has nothing to agree with",
                hint=PARTIAL_HINT if snapshot.left_out else _ALONE_HINT,
            )
        self.snapshot, self.statistics = snapshot, StepStatistics(snapshot)
        self.ranks, self.steps = tuple(snapshot.ranks), tuple(snapshot.steps)
        self.notes: list[str] = []
        self.told = set[tuple[int, ...]]()
        """Ranks that hold the same pieces of tensors, as the dump tells."""
        self.how, self.replicas = "given", given
        """How it is known who is a replica of whom: `given`, `told` by the coordinates of the ranks, those
        that have a `layout` in common, or to be `inferred` from what agrees; and who is, if that is known."""
        self.coordinates: list[Coordinates] = []
        if given is None:
            self._group_by_mesh()

    def _group_by_mesh(self) -> None:
        coordinates = self.snapshot.store.coordinates(self.ranks)
        self.coordinates = [coordinates[rank] for rank in self.ranks]
        self.replicas = replica_groups(coordinates) or None
        self.how = "told" if self.replicas else "inferred"
        unknown = [rank for rank, places in coordinates.items() if not places]
        if self.replicas is None and not unknown:
            self.notes.append(
                "by their places in the mesh, no two ranks are replicas: what they share was inferred"
            )
        elif self.replicas is None and len(unknown) < len(coordinates):
            which = named_ranges("rank", unknown)
            self.notes.append(
                f"the place of {which} in the mesh is not known: which ranks are replicas was inferred"
            )

    def run(self, conditions: FilterFields, *, missed_ranks: bool, layout: bool) -> Divergence:
        """Return the answer for the tensors that fulfil conditions.

        Args:
            conditions: what a tensor of the answer fulfils.
            missed_ranks: look for ranks that are missing, too.
            layout: look for tensors that ranks hold wrongly, too.
        """
        parameters = ReplicaCounts(self.ranks, self.statistics.axis)
        seen = observe(self.statistics, self.ranks, parameters.visit)
        apart = tuple(self.steps[place] for place in np.flatnonzero(seen.apart).tolist())
        if apart:
            self.notes.append(_APART.format(named_ranges("step", apart)))
        seen = seen.only_together()
        if self.replicas is None and (groups := parameters.grid()):
            self.how, self.replicas = "layout", groups
        partition = None if self.replicas is None else self._partition(self.replicas)
        chosen = chosen_tensors(self.statistics, conditions, seen.keys)
        fed_apart = Batches(self.statistics, seen).are_apart(0)
        expectations = Expectations(seen, self.steps, partition, self._pieces(seen), fed_apart=fed_apart)
        finder = DifferenceFinder(expectations, seen, self.ranks, self.steps)
        rows = self._compare(finder, expectations, seen, chosen)
        self._note_outputs(expectations, seen, chosen)
        odd, differences = ordered(rows, self.statistics)
        misplaced = self._misplaced(seen, chosen, odd) if layout else ()
        odd = [_without_cause(onset, misplaced) for onset in odd]
        missing = self._absent(missed_ranks=missed_ranks)
        blocks = list(partition) if partition is not None else _supported(finder)
        tensors, notes = absent_tensors(seen, self.snapshot, blocks, chosen)
        broken, notes_on_operators = broken_operators(seen, self.statistics, chosen)
        self.notes += notes + notes_on_operators
        return Divergence(
            store=self.snapshot.store.url,
            ranks=self.ranks,
            steps=self.steps,
            groups=self._groups(finder),
            odd=tuple(odd),
            differences=tuple(differences),
            missing=(*missing, *tensors),
            notes=tuple(self.notes),
            left_out=self.snapshot.left_out,
            broken=broken,
            misplaced=misplaced,
            apart=apart,
        )

    def _named(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.ranks[place] for place in places)

    def _misplaced(
        self, seen: AgreementOfRanks, chosen: npt.NDArray[np.bool_], odd: Sequence[Odd]
    ) -> tuple[LayoutFinding, ...]:
        """Return what ranks hold and should not, where digests give a reason to look, or replicas part."""
        from ingest.questions.placement.mistakes import MistakeSearch  # deferred: 0.05 s, see `layout`

        names = {seen.keys[tensor].name for tensor in np.flatnonzero(chosen).tolist()}
        # A parameter may change after it was dumped: then the step before shows that another one was used.
        begun = [self.steps.index(onset.first_step) for onset in odd[:_SUSPECTS]]
        # The first step shows over how many ranks sums are made.
        asked = {self.steps[number] for place in begun for number in (0, place - 1, place) if number >= 0}
        findings = MistakeSearch(self.statistics, seen, thorough=False, asked=asked).find()
        return tuple(finding for finding in findings if finding.name in names)

    def _partition(self, given: list[list[int]]) -> Partition:
        places = {rank: place for place, rank in enumerate(self.ranks)}
        blocks = []
        for group in given:
            block = tuple(places[rank] for rank in group if rank in places)
            if len(block) < 2:
                raise UsageError(
                    f"of the group {format_ranges(group)}, {len(block) or 'no'} rank has complete steps: "
                    "it takes two or more",
                    hint=f"Ranks with complete steps: {format_ranges(self.ranks)}.",
                )
            blocks.append(block)
        if alone := set(self.ranks).difference(*given):
            are = "are" if len(alone) > 1 else "is"
            self.notes.append(f"{named_ranges('rank', alone)} {are} in no group, and not compared")
        return tuple(blocks)

    def _compare(
        self,
        finder: DifferenceFinder,
        expectations: Expectations,
        seen: AgreementOfRanks,
        chosen: npt.NDArray[np.bool_],
    ) -> list[Differing]:
        """Return where tensors are off that must agree."""
        rows: list[Differing] = []
        never: list[int] = []
        sometimes: list[int] = []
        for members, history, expected in expectations.decided(chosen):
            if expected is not None:
                rows += finder.find(members, history, expected)
            elif expectations.differs(history.patterns, (history.universe,)):
                unshared = sometimes if expectations.agreed(history.patterns, (history.universe,)) else never
                unshared += [tensor for tensor in members if slot_kind_of(seen.keys[tensor]) in _NAMED]
        for tensors, why in ((sorted(never), _NEVER), (sorted(sometimes), _SELDOM)):
            if tensors:
                names = ", ".join(seen.keys[tensor].name for tensor in tensors[:_SHOWN])
                names += ", ..." * (len(tensors) > _SHOWN)
                what = f"{counted(len(tensors), 'tensor')} that replicas can share"
                self.notes.append(f"{what} {why} ({names})")
        return rows

    def _absent(self, *, missed_ranks: bool) -> list[Missing]:
        """Return the steps that ranks lack, and of given groups the ranks that are not there."""
        elsewhere = ranks_elsewhere(self.snapshot) if missed_ranks else set[int]()
        known = {*self.ranks, *(left_out.key.rank for left_out in self.snapshot.left_out), *elsewhere}
        if missed_ranks and self.replicas and self.how == "given":
            ranks = {*self.ranks, *elsewhere.intersection(chain.from_iterable(self.replicas))}
            return [*absent_ranks(self.replicas, known), *absent_steps(self.snapshot, ranks)]
        if missed_ranks:
            self._note_holes(elsewhere, known)
        return absent_steps(self.snapshot, self.ranks)

    def _pieces(self, seen: AgreementOfRanks) -> dict[int, Partition]:
        """Return by tensor the ranks that hold the same piece of it, as far as the dump tells."""
        if self.how == "given":  # which counts before what the dump tells
            return {}
        told = stage_partitions(seen, self.coordinates)
        told |= told_partitions(self.statistics, seen, self.coordinates)
        self.told = {self._named(block) for block in chain.from_iterable(told.values())}
        return told

    def _groups(self, finder: DifferenceFinder) -> tuple[Group, ...]:
        groups = []
        for block, counts in finder.groups.items():
            ranks = self._named(block)
            is_known = self.replicas is None or any({*ranks} <= {*group} for group in self.replicas)
            # Some ranks share more than replicas do.
            how = self.how if is_known or ranks in self.told else "inferred"
            groups.append(Group(ranks, how, *counts.tolist()))
        return tuple(sorted(groups, key=lambda group: (-group.tensors, group.ranks)))

    def _note_holes(self, elsewhere: set[int], known: set[int]) -> None:
        """Note which ranks may be missing: those of which the store has nothing, or none of these steps."""
        if elsewhere:
            has = "have" if len(elsewhere) > 1 else "has"
            self.notes.append(f"{named_ranges('rank', elsewhere)} {has} none of these steps")
        # With more holes than ranks, only some ranks were dumped on purpose. The holes are counted before
        # they are listed, because a rank may have any number.
        if 0 < max(known) + 1 - len(known) < len(known):
            holes = set(range(max(known))) - known
            self.notes.append(f"the store has nothing of {named_ranges('rank', holes)}")

    def _note_outputs(
        self, expectations: Expectations, seen: AgreementOfRanks, chosen: npt.NDArray[np.bool_]
    ) -> None:
        """Note which outputs of optimizers differ: many optimizers write only into their inputs."""
        differing = []
        for tensor in np.flatnonzero((seen.kinds == SlotKind.OPTIMIZER_OUTPUT) & chosen).tolist():
            history = history_of(seen, [tensor])
            if expectations.differs(history.patterns, expectations.usual(history.universe) or ()):
                differing.append(tensor)
        if differing:
            differ = "differs" if len(differing) == 1 else "differ"
            self.notes.append(
                f"{counted(len(differing), 'output')} of optimizers {differ}, not counted: many update "
                "their inputs in place and leave their outputs as they were; the inputs were compared "
                f"({seen.keys[differing[0]].name}{', ...' * (len(differing) > 1)})"
            )


def _without_cause(onset: Odd, misplaced: Iterable[LayoutFinding]) -> Odd:
    """Return where a rank began to be off: as a consequence, if something else was wrong before."""
    before = [finding for finding in misplaced if finding.step <= onset.first_step]
    if not before:
        return onset
    first = min(before, key=lambda finding: finding.step)
    return replace(onset, cause="", level=Level.OPEN, after=f"{first.kind} in step {first.step}")


def _supported(finder: DifferenceFinder) -> list[tuple[int, ...]]:
    """Return the largest inferred groups that many tensors support: what one rank has, all should have."""
    limit = _SUPPORT * max((int(counts[0]) for counts in finder.groups.values()), default=0)
    known = [set(block) for block, counts in finder.groups.items() if int(counts[0]) >= limit]
    return [tuple(sorted(block)) for block in known if not any(block < other for other in known)]


def _checked_groups(groups: Iterable[Iterable[int]]) -> list[list[int]]:
    """Return groups of ranks, each in order.

    Raises:
        UsageError: a group is none, or has fewer than two ranks, or a rank is in two of them.
    """
    checked: list[list[int]] = []
    seen: set[int] = set()
    for group in groups:
        if isinstance(group, int | str):
            raise UsageError(f"{group!r} is not a group of ranks", hint="For example: [[0, 1], [2, 3]].")
        ranks = sorted(set(group))
        if len(ranks) < 2:
            alone = f"a group of {len(ranks)} rank has nothing to agree with: it takes two or more"
            raise UsageError(alone, hint=_GROUP_HINT)
        if twice := seen.intersection(ranks):
            raise UsageError(f"rank {min(twice)} is in two groups", hint="Put each rank into one group only.")
        seen.update(ranks)
        checked.append(ranks)
    return checked


QUESTION = Question(
    divergence,
    ("divergence run.zarr", "divergence run.zarr --group 0-3 --group 4-7"),
    limit=20,
    noun="row",
    takes_mesh=True,
)


def chosen_tensors(
    statistics: StepStatistics, fields: FilterFields, keys: Sequence[TensorKey]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the tensors that fulfil the conditions in any step of any rank, (tensor,).

    Without conditions, all but those of functions that were called in no module.
    Conditions on anything but names need the statistics of the steps, which are read once more.

    Args:
        statistics: reads the steps.
        fields: the conditions.
        keys: the tensors, in the order of the axis of `statistics`.

    Raises:
        UsageError: no tensor fulfils them, or they are not conditions.
    """
    choice = BlockFilter(fields, statistics.axis)
    if not choice.filter.names:
        # What only a number names is something else on ranks that log more.
        return np.array([not is_numbered(key.op_type, key.op_name) for key in keys], bool)
    if choice.filter.is_of_names:
        chosen = choice.of_names(len(keys))
    else:
        chosen = np.zeros(len(keys), bool)
        for block in statistics.blocks():
            mask = np.asarray(choice.mask(block).any(axis=0))[: len(keys)]
            chosen[: mask.size] |= mask
    if not chosen.any():
        raise empty_choice_error(choice.filter, keys)
    return chosen
