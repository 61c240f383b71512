"""Where replicas stop to agree, from digests alone: no payload is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.questions.divergence.absent import Presence, absent_ranks, absent_steps, absent_tensors
from ingest.questions.divergence.groups import Expectations, History, Partition, checked_groups
from ingest.questions.divergence.kinds import WORDS, SlotKind, kind_of
from ingest.questions.divergence.patterns import ABSENT, Patterns, StepPatterns, patterns_of
from ingest.questions.divergence.result import Difference, Divergence, Group, Odd
from ingest.reader.catalog import Catalog, Choice
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import StepStatistics
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.rules.names import matching
from workers.store.blocks import Block, TensorKey

#: Steps that are looked at again for the order of execution and the values of what came first.
_DETAILED = 32
#: A group that this share of the tensors of the largest one does not support is not missed anything in.
_SUPPORT = 0.1
_SHOWN = 3
#: Kinds that a name alone gives reason to compare.
_NAMED = (SlotKind.COLLECTIVE, SlotKind.OPTIMIZER, SlotKind.PARAMETER)


def divergence(
    store: Catalog,
    groups: Iterable[Iterable[int]] | None = None,
    *,
    rank: Choice = None,
    step: Choice = None,
    name: str | None = None,
    include_partial: bool = False,
) -> Divergence:
    """Find tensors that replicas should agree on and do not, by their digests.

    Looked at are outputs of all-reduce, all-gather and broadcast; what optimizers read; parameters, and
    inputs that hold the bytes of one; and any other tensor that agreed in the three steps before. Activations
    are of other data on each rank, and never expected to agree.

    Memory: what `StepStatistics` takes, and 9 bytes for each tensor and step.

    Args:
        store: the store.
        groups: ranks that are replicas of one another; without it, they are inferred from what agrees.
        rank: one rank, or several; all where None.
        step: one step, or several; all where None.
        name: a glob over the names of tensors.
        include_partial: take steps with quarantined or missing files, too.

    Raises:
        UsageError: a rank, step, group or name fits nothing, or there is only one rank.
        DamagedStore: the index of a step is missing or damaged.
    """
    given = None if groups is None else checked_groups(groups)
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    if len(snapshot.ranks) < 2:
        raise UsageError(
            f"{store.url}: only rank {snapshot.ranks[0]} has complete steps: nothing to agree with",
            hint="--include-partial takes partial steps." if snapshot.left_out else "",
        )
    return _Search(StepStatistics(snapshot), given).run(name, missed_ranks=rank is None)


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """Who agrees with whom in each step, by tensors."""

    keys: list[TensorKey]
    kinds: npt.NDArray[np.int8]
    """(tensor,)."""
    content: npt.NDArray[np.int32]
    """(step, tensor): number of a pattern."""
    statistics: npt.NDArray[np.int32]
    """(step, tensor): number of a pattern, or -1."""
    tells: npt.NDArray[np.bool_]
    """(step, tensor)."""


class _Row(NamedTuple):
    """A difference, where its tensor is, and the numbers of the steps in which it differs."""

    tensor: int
    difference: Difference
    numbers: list[int]


@dataclass(slots=True)
class _Found:
    """Where one tensor, or several that behave alike, are off."""

    places: tuple[int, ...]
    has_majority: bool
    others: tuple[int, ...]
    by_statistics: bool
    numbers: list[int] = field(default_factory=list)
    """Of the steps."""
    healed: bool = False


class _Search:
    """One search through a snapshot."""

    def __init__(self, survey: StepStatistics, given: list[list[int]] | None) -> None:
        self.survey, self.snapshot = survey, survey.snapshot
        self.ranks = tuple(self.snapshot.ranks)
        self.steps = tuple(self.snapshot.steps)
        self.given = given
        self.patterns = Patterns(len(self.ranks))
        self.notes: list[str] = []
        self.groups: dict[tuple[int, ...], list[int]] = {}
        """By the places of its ranks: tensors, what was compared, what agreed."""

    def run(self, name: str | None, *, missed_ranks: bool) -> Divergence:
        """Do it all."""
        partition = None if self.given is None else self._partition(self.given)
        seen = self._compare()
        keys = seen.keys
        chosen = np.ones(len(keys), bool)
        if name is not None:
            chosen[:] = False
            chosen[matching(name, [key.name for key in keys])] = True
        expectations = Expectations(self.patterns.all, partition)
        rows: list[_Row] = []
        unshared: list[int] = []
        for members, history, expected in self._decided(expectations, seen, chosen):
            if expected is None:
                if self._differs(expectations, history):
                    unshared += [one for one in members if kind_of(keys[one]) in _NAMED]
                continue
            found = self._judge(expectations, history, expected, len(members))
            rows += self._differences(found, history, members, seen)
        self._note_unshared(unshared, keys)
        self._note_outputs(expectations, seen, chosen)
        odd, differences = self._odd(rows)
        missing = absent_steps(self.snapshot)
        if missed_ranks and self.given:
            missing = [*absent_ranks(self.given, self.snapshot), *missing]
        elif missed_ranks:
            self._note_holes()
        tensors, notes = absent_tensors(self._presence(seen.content), self._blocks(partition), keys, chosen)
        self.notes += notes
        return Divergence(
            self.snapshot.store.url,
            self.ranks,
            self.steps,
            self._groups(),
            tuple(odd),
            tuple(differences),
            (*missing, *tensors),
            tuple(self.notes),
            self.snapshot.left_out,
        )

    def _partition(self, given: list[list[int]]) -> Partition:
        places = {rank: place for place, rank in enumerate(self.ranks)}
        blocks = []
        for group in given:
            block = tuple(places[rank] for rank in group if rank in places)
            if len(block) < 2:
                raise UsageError(
                    f"of the group {format_ranges(group)}, the complete steps are of {len(block)} rank"
                    + "s" * (len(block) != 1),
                    hint=f"There are ranks {format_ranges(self.ranks)}.",
                )
            blocks.append(block)
        rest = set(self.ranks) - {rank for group in given for rank in group}
        if rest:
            who = f"ranks {format_ranges(rest)} are" if len(rest) > 1 else f"rank {format_ranges(rest)} is"
            self.notes.append(f"{who} in no group, and not compared")
        return tuple(blocks)

    def _compare(self) -> _Compared:
        """Compare the ranks step by step."""
        found: list[StepPatterns] = []
        kinds = np.zeros(0, np.int8)
        known: dict[int, npt.NDArray[np.uint64]] = {}
        for block in self.survey.blocks():
            width = block.row.shape[1]
            # The axis may be ahead of the block: the next step is read meanwhile.
            new = [kind_of(self.survey.axis[place]) for place in range(len(kinds), width)]
            kinds = np.concatenate([kinds, np.array(new, np.int8)])
            one = patterns_of(block, self.ranks, self.patterns)
            found.append(one)
            known = self._aliases(block, kinds, one.tells, known)
        absent = int(self.patterns.numbers(np.full((len(self.ranks), 1), ABSENT, np.int32))[0])
        found = [one.widened(len(kinds), absent) for one in found]
        return _Compared(
            # Beyond them may be tensors of other steps.
            self.survey.axis.keys[: len(kinds)],
            kinds,
            np.stack([one.by_content for one in found]),
            np.stack([one.by_statistics for one in found]),
            np.stack([one.tells for one in found]),
        )

    def _aliases(
        self,
        block: Block,
        kinds: npt.NDArray[np.int8],
        tells: npt.NDArray[np.bool_],
        before: Mapping[int, npt.NDArray[np.uint64]],
    ) -> dict[int, npt.NDArray[np.uint64]]:
        """Count the inputs that hold the bytes of a parameter among the parameters.

        Some dumps have a parameter as it was before its update, some as it was after that: so the parameters
        of the step `before` count, too. Two ranks are looked at, for one may be off.

        Returns:
            By rank: the first 8 bytes of the digest of each parameter of this step.
        """
        is_parameter = ((kinds == SlotKind.PARAMETER) | (kinds == SlotKind.OPTIMIZER)) & tells
        found = {}
        inputs = []
        for place in {0, len(block.ranks) - 1}:
            codes = np.ascontiguousarray(block.digest[place]).view("<u8")[:, 0]
            there = (block.row[place] >= 0) & block.digest[place].any(axis=1)
            own = found[block.ranks[place]] = codes[there & is_parameter]
            known = np.concatenate([own, before.get(block.ranks[place], own[:0])])
            others = np.flatnonzero(there & (kinds == SlotKind.OTHER) & tells)
            inputs += others[np.isin(codes[others], known)].tolist()
        kinds[[one for one in inputs if self.survey.axis[one].io == "input"]] = SlotKind.PARAMETER
        return found

    def _decided(
        self, expectations: Expectations, seen: _Compared, chosen: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[list[int], History, Partition | None]]:
        """Yield tensors that behave alike, what they showed, and how they must agree."""
        # The tensors that are not asked for, too, show who is a replica of whom.
        alike = [(members, self._history(members[0], seen)) for members in _alike(seen)]
        for members, history in alike:
            expectations.note(history, len(members))
        decided = []
        for members, history in alike:
            expected = expectations.decide(history)
            expectations.count(history, expected, (seen.keys[one].operator for one in members))
            decided.append((members, history, expected))
        for members, history, expected in decided:
            by_expected: dict[Partition | None, list[int]] = {}
            for one in members:
                if chosen[one]:
                    last = expected or expectations.decide_by_others(history, seen.keys[one].operator)
                    by_expected.setdefault(last, []).append(one)
            for last, asked in by_expected.items():
                yield asked, history, last

    def _history(self, tensor: int, seen: _Compared) -> History:
        numbers = seen.content[:, tensor].tolist()
        has = np.zeros(len(self.ranks), bool)
        for number in set(numbers):
            has |= self.patterns[number] != ABSENT
        return History(
            SlotKind(int(seen.kinds[tensor])),
            tuple(numbers),
            tuple(seen.tells[:, tensor].tolist()),
            tuple(np.flatnonzero(has).tolist()),
        )

    def _differs(self, expectations: Expectations, history: History) -> bool:
        """Whether a tensor is not the same on all ranks, in any step."""
        verdicts = (
            verdict
            for one in set(history.patterns)
            for verdict in expectations.verdicts(one, (history.universe,))
        )
        return not all(verdict.agrees for verdict in verdicts)

    def _judge(
        self, expectations: Expectations, history: History, expected: Partition, tensors: int
    ) -> list[_Found]:
        """Return where tensors are off, and count what agrees."""
        found: dict[tuple[tuple[int, ...], bool, tuple[int, ...]], _Found] = {}
        agreed_last: dict[tuple[int, ...], int] = {}
        for block in expected:
            self.groups.setdefault(block, [0, 0, 0])[0] += tensors
        for number, pattern in enumerate(history.patterns):
            for verdict in expectations.verdicts(pattern, expected):
                counts = self.groups[verdict.block]
                counts[1] += tensors
                if verdict.agrees:
                    counts[2] += tensors
                    agreed_last[verdict.block] = number
                    continue
                sets = [(place,) for place in verdict.odd] if verdict.has_majority else [verdict.odd]
                for places in sets:
                    key = (places, verdict.has_majority, verdict.block)
                    others = verdict.most if verdict.has_majority else ()
                    one = found.setdefault(
                        key, _Found(places, verdict.has_majority, others, verdict.by_statistics)
                    )
                    one.numbers.append(number)
        _settle_ties(found)
        for (_, _, block), one in found.items():
            one.healed = agreed_last.get(block, -1) > one.numbers[-1]
        return list(found.values())

    def _differences(
        self, found: Sequence[_Found], history: History, members: Sequence[int], seen: _Compared
    ) -> Iterator[_Row]:
        for one in found:
            for tensor in members:
                number = int(seen.statistics[one.numbers[0], tensor])
                same = False
                if number >= 0 and not one.by_statistics:
                    labels = self.patterns[number]
                    same = len({int(labels[place]) for place in (*one.places, *one.others[:1])}) == 1
                yield _Row(
                    tensor,
                    Difference(
                        seen.keys[tensor],
                        self._named(one.places),
                        one.has_majority,
                        self._named(one.others),
                        WORDS[history.kind],
                        self.steps[one.numbers[0]],
                        self.steps[one.numbers[-1]],
                        len(one.numbers),
                        one.healed,
                        "statistics" if one.by_statistics else "digest",
                        same,
                    ),
                    one.numbers,
                )

    def _odd(self, rows: list[_Row]) -> tuple[list[Odd], list[Difference]]:
        """Put the differences in order, and say for each odd rank where it began."""
        by_ranks: dict[tuple[tuple[int, ...], bool], list[_Row]] = {}
        for row in rows:
            key = (row.difference.ranks, row.difference.has_majority)
            by_ranks.setdefault(key, []).append(row)
        begun: dict[int, list[list[_Row]]] = {}
        for members in by_ranks.values():
            begun.setdefault(min(row.difference.first_step for row in members), []).append(members)
        order: dict[tuple[int, int], int] = {}
        odd: list[tuple[int, int, Odd]] = []
        for count, step in enumerate(sorted(begun)):
            block = self.survey.block(step) if count < _DETAILED else None
            odd += [(step, *self._begin(members, step, block, order)) for members in begun[step]]
        odd.sort(key=lambda one: one[:2])

        def place(row: _Row) -> tuple[int, int]:
            step = row.difference.first_step
            return step, order.get((step, row.tensor), row.tensor)

        return [one for _, _, one in odd], [row.difference for row in sorted(rows, key=place)]

    def _begin(
        self, members: list[_Row], step: int, block: Block | None, order: dict[tuple[int, int], int]
    ) -> tuple[int, Odd]:
        """Return the place in the order of execution of the first difference, and what follows from it.

        `order` takes the places of all that differ first in this step; without `block`, they are not known.
        """
        begun = [row for row in members if row.difference.first_step == step]
        rank = begun[0].difference.ranks[0]
        for row in begun:
            at = row.tensor if block is None else int(block.row[block.ranks.index(rank), row.tensor])
            order.setdefault((step, row.tensor), at)
        tensor, first, _ = min(begun, key=lambda row: order[step, row.tensor])
        source, values = "", {}
        if block is not None:
            source = self._source(rank, step, int(block.row[block.ranks.index(rank), tensor]))
            values = _values(block, first, tensor)
        return order[step, tensor], Odd(
            first.ranks,
            first.has_majority,
            first.others,
            step,
            first,
            source,
            values,
            len({row.tensor for row in members}),
            len({number for row in members for number in row.numbers}),
            max(row.difference.last_step for row in members),
            all(row.difference.healed for row in members),
        )

    def _source(self, rank: int, step: int, row: int) -> str:
        one = self.snapshot.step(rank, step)
        if one is None:
            return ""
        source = str(one.tables.label("source")[row])
        one.forget_tables()
        return source

    def _groups(self) -> tuple[Group, ...]:
        how = "inferred" if self.given is None else "given"
        found = [Group(self._named(block), how, *counts) for block, counts in self.groups.items()]
        return tuple(sorted(found, key=lambda one: (-one.tensors, one.ranks)))

    def _blocks(self, partition: Partition | None) -> list[tuple[int, ...]]:
        """Return the largest groups that many tensors support: what one rank has, all should have."""
        if partition is not None:
            return list(partition)
        most = max((counts[0] for counts in self.groups.values()), default=0)
        known = [set(block) for block, counts in self.groups.items() if counts[0] >= most * _SUPPORT]
        return [tuple(sorted(one)) for one in known if not any(one < other for other in known)]

    def _presence(self, content: npt.NDArray[np.int32]) -> Presence:
        there = (self.snapshot.of_step(step) for step in self.steps)
        with_step = np.array([[rank in ranks for rank in self.ranks] for ranks in there])
        return Presence(self.ranks, self.steps, content, self.patterns.all, with_step)

    def _note_unshared(self, tensors: list[int], keys: Sequence[TensorKey]) -> None:
        if tensors:
            names = ", ".join(keys[one].name for one in sorted(tensors)[:_SHOWN])
            self.notes.append(
                f"{len(tensors)} tensors that replicas can share never agreed, and so were not compared: "
                "batches, or parts of a whole of which each rank has its own, or what differs from the first "
                f"step on ({names}{', ...' * (len(tensors) > _SHOWN)})"
            )

    def _note_holes(self) -> None:
        """Say which ranks may be missing: those of which there is nothing, among ranks of which there is."""
        known = {*self.ranks, *(one.key.rank for one in self.snapshot.left_out)}
        # Else some ranks were chosen to be dumped. Counted first: a number of a rank may be anything.
        if 0 < max(known) + 1 - len(known) < len(known):
            holes = set(range(max(known))) - known
            self.notes.append(
                f"there is nothing of rank{'s' * (len(holes) > 1)} {format_ranges(holes)} in the store"
            )

    def _note_outputs(
        self, expectations: Expectations, seen: _Compared, chosen: npt.NDArray[np.bool_]
    ) -> None:
        """Say which outputs of optimizers differ: many write over their inputs, and nothing else."""
        differing = []
        for tensor in np.flatnonzero((seen.kinds == SlotKind.OPTIMIZER_OUTPUT) & chosen).tolist():
            history = self._history(tensor, seen)
            usual = expectations.usual(history.universe) or ()
            verdicts = (
                verdict for one in set(history.patterns) for verdict in expectations.verdicts(one, usual)
            )
            if not all(verdict.agrees for verdict in verdicts):
                differing.append(tensor)
        if differing:
            self.notes.append(
                f"{len(differing)} outputs of optimizers differ, and are not counted: many optimizers update "
                "their inputs in place and leave their outputs as they were; the inputs were compared "
                f"({seen.keys[differing[0]].name}{', ...' * (len(differing) > 1)})"
            )

    def _named(self, places: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.ranks[place] for place in places)


def _settle_ties(found: dict[tuple[tuple[int, ...], bool, tuple[int, ...]], _Found]) -> None:
    """Count a difference of two ranks against the one that a majority found to be off in another step."""
    for key, tie in list(found.items()):
        places, has_majority, block = key
        if has_majority or len(places) != 2:
            continue
        known = [one for place in places if (one := found.get(((place,), True, block)))]
        if len(known) == 1:
            known[0].numbers = sorted({*known[0].numbers, *tie.numbers})
            del found[key]


def _alike(seen: _Compared) -> list[list[int]]:
    """Return sets of tensors that are of one kind and have the same pattern in each step."""
    if not seen.keys:
        return []
    columns = np.concatenate([seen.content * 2 + seen.tells, seen.kinds[None].astype(np.int32)])
    factors = np.random.default_rng(5).integers(1, 2**63, len(columns), np.uint64) * np.uint64(2) + np.uint64(
        1
    )
    codes = np.zeros(len(seen.keys), np.uint64)
    for column, factor in zip(columns, factors, strict=True):
        mixed = (column.astype(np.uint64) + np.uint64(1)) * factor
        codes += mixed ^ (mixed >> np.uint64(31))
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    return [part.tolist() for part in np.split(order, ends)]


def _values(block: Block, first: Difference, tensor: int) -> dict[str, tuple[float, float]]:
    """Return the statistics that differ between the odd rank and the others; of two, between these."""
    odd = block.statistics[block.ranks.index(first.ranks[0]), tensor]
    other_rank = (first.others or first.ranks[1:])[0]
    others = block.statistics[block.ranks.index(other_rank), tensor]
    return {
        name: (float(a), float(b))
        for name, a, b in zip(FIELDS, odd, others, strict=True)
        if a != b and not (np.isnan(a) and np.isnan(b))
    }
