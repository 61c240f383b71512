"""What some replicas have and others do not: steps, operators, tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.divergence.agreement import ABSENT, AgreementOfRanks
from ingest.questions.divergence.result import Missing
from ingest.reader.choice import format_ranges, named_ranges
from ingest.reader.snapshot import Snapshot
from ingest.reader.text import counted
from workers.model import StepKey
from workers.store.consolidated.blocks import OperatorKey, TensorKey

#: The share of the tensors of a group that all its ranks must have by name; with less, nothing is missed.
_COMMON = 0.5
_Split: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...]]
"""How a tensor is absent: `missing`, `extra` or `only here`, for which ranks, and who the others are."""
#: How the types of the calls of modules begin in dumps of PyTorch.
_MODULE = "Module."


def ranks_elsewhere(snapshot: Snapshot) -> set[int]:
    """Return the ranks of which the store has steps, but none that a snapshot of all ranks is about."""
    within = {*snapshot.ranks, *(left_out.key.rank for left_out in snapshot.left_out)}
    # The steps of ranks within are not listed: rules ask this for each step of a run.
    others = set(snapshot.store.listed_ranks) - within
    return {key.rank for key in snapshot.store.listed(others)} if others else set()


def absent_ranks(groups: Iterable[Sequence[int]], known: Collection[int]) -> list[Missing]:
    """Return the ranks of given groups that the store does not have; it has those that are `known`."""
    return [
        Missing("rank", "missing", (rank,), tuple(other for other in group if other in known))
        for group in groups
        for rank in group
        if rank not in known
    ]


def absent_steps(snapshot: Snapshot, ranks: Collection[int]) -> list[Missing]:
    """Return the steps that some of these ranks have and others do not.

    Steps that were left out are not missing.
    """
    excused = {left_out.key for left_out in snapshot.left_out}
    found: dict[tuple[str, int], tuple[list[int], set[int]]] = {}
    for step in snapshot.steps:
        have = set(snapshot.of_step(step))
        lack = {rank for rank in ranks if rank not in have and StepKey(rank, step) not in excused}
        if lack:
            is_missed = len(have) >= len(lack)
            state, odd, others = ("missing", lack, have) if is_missed else ("extra", have, lack)
            for rank in odd:
                steps, others_of_all = found.setdefault((state, rank), ([], set()))
                steps.append(step)
                others_of_all |= others
    return [
        Missing(
            "step",
            state,
            (rank,),
            tuple(sorted(others)),
            first_step=steps[0],
            last_step=steps[-1],
            steps=len(steps),
        )
        for (state, rank), (steps, others) in sorted(
            found.items(), key=lambda entry: (entry[1][0][0], entry[0])
        )
    ]


def absent_tensors(
    seen: AgreementOfRanks,
    snapshot: Snapshot,
    blocks: Iterable[tuple[int, ...]],
    chosen: npt.NDArray[np.bool_],
) -> tuple[list[Missing], list[str]]:
    """Return the tensors that some ranks of a block lack in a step that they have. Whole operators are one.

    Args:
        seen: which ranks have what, by its patterns.
        snapshot: its steps.
        blocks: groups of ranks, given by their places.
        chosen: (tensor,): which of them to examine.

    Returns:
        What is absent, and notes on groups that have too few names in common.
    """
    search = _AbsenceSearch(seen, snapshot, chosen)
    for block in blocks:
        search.examine(list(block))
    whole = Counter(key.operator for key in seen.keys)
    rows = [
        row
        for split, steps_of in search.absent.items()
        for row in _rows(split, steps_of, keys=seen.keys, whole=whole)
    ]
    rows, notes_on_calls = _without_calls_of_own(rows, seen, snapshot)
    rows, notes = _without_parts(rows)
    notes += notes_on_calls
    return sorted(rows, key=lambda row: (row.first_step or 0, row.ranks)), search.notes + notes


def _without_parts(rows: list[Missing]) -> tuple[list[Missing], list[str]]:
    """Return what is absent but parts of a model of which each rank has its own, and a note on these."""
    parts = [row for row in rows if row.state != "missing"]
    owners = {row.ranks for row in parts}
    if not any({*one}.isdisjoint(other) for one, other in combinations(owners, 2)):
        return rows, []
    who = named_ranges("rank", frozenset[int]().union(*owners))
    note = (
        f"{who} have {counted(sum(row.tensors for row in parts), 'tensor')} that others lack, each its own, "
        f"such as experts, tables or stages: not missed ({parts[0].name}, ...)"
    )
    return [row for row in rows if row.state == "missing"], [note]


def _without_calls_of_own(
    rows: list[Missing], seen: AgreementOfRanks, snapshot: Snapshot
) -> tuple[list[Missing], list[str]]:
    """Return what is absent but calls that depend on the samples of a rank, and a note on these.

    So it is in dumps of PyTorch if ranks that lack a call read other samples than those that have it, and
    have called all of the model: an expert that no token chose, or a cluster of words of an adaptive softmax.
    The gradient of a parameter that replicas have is missed all the same.
    """
    inputs = (n for n, key in enumerate(seen.keys) if key.op_type.startswith(_MODULE) and key.io == "input")
    first = next(inputs, None)
    absent = {key.op_name for row in rows for key in row.keys}
    if first is None or seen.keys[first].op_name in absent:
        return rows, []
    parameters = {seen.keys[parameter].op_name for _, parameter in seen.gradients}
    own: list[Missing] = []
    others: list[Missing] = []
    for row in rows:
        is_called = parameters.isdisjoint(key.op_name for key in row.keys)
        (own if is_called and _read_other(first, row, seen, snapshot) else others).append(row)
    if not own:
        return rows, []
    note = (
        f"{counted(sum(row.tensors for row in own), 'tensor')} of calls that some ranks make and others do "
        f"not, each with other samples, such as experts that no token chose: not missed ({own[0].name}, ...)"
    )
    return others, [note]


def _read_other(tensor: int, row: Missing, seen: AgreementOfRanks, snapshot: Snapshot) -> bool:
    """Return whether ranks that lack something hold other bytes of a tensor than those that have it."""
    if row.first_step is None:
        return False
    labels = seen.labels([*snapshot.steps].index(row.first_step), tensor)
    own, theirs = ({labels[snapshot.ranks.index(n)] for n in ranks} for ranks in (row.ranks, row.others))
    return own.isdisjoint(theirs)


class _AbsenceSearch:
    """Looks at one block of ranks after the other."""

    def __init__(self, seen: AgreementOfRanks, snapshot: Snapshot, chosen: npt.NDArray[np.bool_]) -> None:
        self._content, self._snapshot, self._chosen = seen.content, snapshot, chosen
        has = np.array([pattern != ABSENT for pattern in seen.patterns.all])
        # Many patterns differ only in who agrees with whom: (set, rank), and the set of each pattern.
        self._sets, set_of_pattern = np.unique(
            has.reshape(-1, len(snapshot.ranks)), axis=0, return_inverse=True
        )
        self._set_of_pattern = set_of_pattern.reshape(-1)
        self.absent: dict[_Split, dict[int, list[int]]] = {}
        """By how they are absent, and by tensor: the steps."""
        self.notes: list[str] = []

    def examine(self, places: list[int]) -> None:
        """Record the tensors that some of these ranks lack."""
        has = self._sets[:, places]
        ever = np.zeros((self._content.shape[1], len(places)), bool)
        for row in self._content:
            ever |= has[self._set_of_pattern[row]]
        # How many tensors every one of them has in some step, and how many any of them has.
        common, total = (int(which(ever[self._chosen], axis=1).sum()) for which in (np.all, np.any))
        if total and common < _COMMON * total:
            names = format_ranges(self._snapshot.ranks[place] for place in places)
            self.notes.append(
                f"ranks {names} have only {common} of {total} names of tensors in common: are operators "
                "numbered differently on each rank? Missing tensors are not listed for them."
            )
            return
        for number, step in enumerate(self._snapshot.steps):
            there = self._snapshot.of_step(step)
            with_step = {place for place in places if self._snapshot.ranks[place] in there}
            self._look_at_step(number, step, with_step)

    def _look_at_step(self, number: int, step: int, with_step: set[int]) -> None:
        sets = self._set_of_pattern[self._content[number]]
        for ranks_set in np.unique(sets[self._chosen]).tolist():
            have = {place for place in with_step if self._sets[ranks_set, place]}
            lack = with_step - have
            if have and lack:
                steps_of = self.absent.setdefault(_split(self._snapshot.ranks, have, lack), {})
                for tensor in np.flatnonzero((sets == ranks_set) & self._chosen).tolist():
                    steps_of.setdefault(tensor, []).append(step)


def _split(ranks: Sequence[int], have: set[int], lack: set[int]) -> _Split:
    with_it, without = (tuple(ranks[place] for place in sorted(places)) for places in (have, lack))
    if len(have) > len(lack):
        return "missing", without, with_it
    return "extra" if len(have) < len(lack) else "only here", with_it, without


def _rows(
    split: _Split,
    steps_of: dict[int, list[int]],
    *,
    keys: Sequence[TensorKey],
    whole: Counter[OperatorKey],
) -> list[Missing]:
    """Return a row for each operator that is absent with all its tensors, and for each other tensor."""
    by_operator: dict[tuple[OperatorKey, tuple[int, ...]], list[TensorKey]] = {}
    for tensor, steps in steps_of.items():
        by_operator.setdefault((keys[tensor].operator, tuple(steps)), []).append(keys[tensor])
    rows = []
    for (operator, span), members in by_operator.items():
        _, graph, op_type, op_name, occurrence = operator
        what = "tensor"
        absent: list[tuple[str, tuple[TensorKey, ...]]] = [(key.name, (key,)) for key in members]
        if len(members) == whole[operator]:
            number = f"#{occurrence}" if occurrence else ""
            what, absent = "operator", [(f"{op_type}.{op_name}{number}", tuple(members))]
        rows += [
            Missing(what, *split, name, graph, len(own), span[0], span[-1], len(span), own)
            for name, own in absent
        ]
    return rows
