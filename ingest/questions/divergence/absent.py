"""What some replicas have and others have not: steps, operators, tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.questions.divergence.patterns import ABSENT, Labels
from ingest.questions.divergence.result import Missing
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import Snapshot
from workers.model import StepKey
from workers.store.blocks import TensorKey

#: Share of the tensors of a group that all its ranks must have by name, so that single ones can be missed.
_COMMON = 0.5


def absent_ranks(groups: Iterable[Sequence[int]], snapshot: Snapshot) -> list[Missing]:
    """Return the ranks of given groups that the store does not have."""
    known = {*snapshot.ranks, *(one.key.rank for one in snapshot.left_out)}
    found = []
    for group in groups:
        there = tuple(rank for rank in group if rank in known)
        found += [
            Missing("rank", "missing", (rank,), there, "", "", 0, None, None, 0)
            for rank in group
            if rank not in known
        ]
    return found


def absent_steps(snapshot: Snapshot) -> list[Missing]:
    """Return the steps that some ranks have and others have not; what was left out is not missed again."""
    excused = {one.key for one in snapshot.left_out}
    lacking: dict[tuple[str, int], list[int]] = {}
    others: dict[tuple[str, int], set[int]] = {}
    known = snapshot.ranks
    for step in snapshot.steps:
        have = snapshot.of_step(step)
        lack = [rank for rank in known if rank not in have and StepKey(rank, step) not in excused]
        if not lack:
            continue
        is_missed = len(have) >= len(lack)
        ranks, rest = (lack, list(have)) if is_missed else (list(have), lack)
        state = "missing" if is_missed else "extra"
        for rank in ranks:
            lacking.setdefault((state, rank), []).append(step)
            others.setdefault((state, rank), set()).update(rest)
    return [
        Missing(
            "step",
            state,
            (rank,),
            tuple(sorted(others[state, rank])),
            "",
            "",
            0,
            steps[0],
            steps[-1],
            len(steps),
        )
        for (state, rank), steps in sorted(lacking.items(), key=lambda one: (one[1][0], one[0]))
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Presence:
    """Which ranks have which tensor in which step, by what patterns say."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    content: npt.NDArray[np.int32]
    """(step, tensor): number of the pattern."""
    patterns: Sequence[Labels]
    with_step: npt.NDArray[np.bool_]
    """(step, rank): whether the rank has the step at all."""


def absent_tensors(
    presence: Presence,
    blocks: Iterable[tuple[int, ...]],
    keys: Sequence[TensorKey],
    chosen: npt.NDArray[np.bool_],
) -> tuple[list[Missing], list[str]]:
    """Return the tensors, whole operators as one, that some ranks of a block lack in a step that they have.

    Args:
        presence: which ranks have what.
        blocks: groups of ranks, by their places.
        keys: all tensors.
        chosen: (tensor,): which of them to look at.

    Returns:
        What is absent, and notes on groups that have too few names in common.
    """
    has = np.array([pattern != ABSENT for pattern in presence.patterns]).reshape(-1, len(presence.ranks))
    distinct, kind_of = np.unique(has, axis=0, return_inverse=True)
    kind_of = kind_of.reshape(-1)
    found: dict[tuple[str, tuple[int, ...], tuple[int, ...]], dict[int, list[int]]] = {}
    notes = []
    for block in blocks:
        places = list(block)
        in_step = [set(np.flatnonzero(row).tolist()) & set(places) for row in presence.with_step]
        common, total = _common(presence, distinct[:, places], kind_of, chosen)
        if total and common < _COMMON * total:
            names = format_ranges(presence.ranks[place] for place in places)
            notes.append(
                f"ranks {names} have only {common} of {total} names of tensors in common: are operators "
                "numbered otherwise on each rank? What others lack is not listed."
            )
            continue
        for number, step in enumerate(presence.steps):
            kinds = kind_of[presence.content[number]]
            for kind in np.unique(kinds[chosen]).tolist():
                have = {place for place in in_step[number] if distinct[kind, place]}
                lack = in_step[number] - have
                if not have or not lack:
                    continue
                state, ranks, rest = _state(have, lack)
                key = (state, _named(ranks, presence.ranks), _named(rest, presence.ranks))
                into = found.setdefault(key, {})
                for tensor in np.flatnonzero((kinds == kind) & chosen).tolist():
                    into.setdefault(tensor, []).append(step)
    whole = Counter(key.operator for key in keys)
    rows = [row for key, tensors in found.items() for row in _rows(*key, tensors, keys=keys, whole=whole)]
    return sorted(rows, key=lambda row: (row.first_step or 0, row.ranks)), notes


def _common(
    presence: Presence,
    has: npt.NDArray[np.bool_],
    kind_of: npt.NDArray[np.intp],
    chosen: npt.NDArray[np.bool_],
) -> tuple[int, int]:
    """Return how many tensors every rank of a block has in some step, and how many any has."""
    ever = np.zeros((presence.content.shape[1], has.shape[1]), bool)
    for row in presence.content:
        ever |= has[kind_of[row]]
    ever = ever[chosen]
    return int(ever.all(axis=1).sum()), int(ever.any(axis=1).sum())


def _state(have: set[int], lack: set[int]) -> tuple[str, set[int], set[int]]:
    if len(have) > len(lack):
        return "missing", lack, have
    return ("extra" if len(have) < len(lack) else "only here"), have, lack


def _named(places: Iterable[int], ranks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ranks[place] for place in sorted(places))


def _rows(
    state: str,
    ranks: tuple[int, ...],
    others: tuple[int, ...],
    tensors: dict[int, list[int]],
    *,
    keys: Sequence[TensorKey],
    whole: Counter[tuple[str, str, str, str, int]],
) -> list[Missing]:
    """Return a row for each operator that is absent with all it has, and for each other tensor."""
    by_operator: dict[tuple[tuple[str, str, str, str, int], tuple[int, ...]], list[int]] = {}
    for tensor, lacking in tensors.items():
        by_operator.setdefault((keys[tensor].operator, tuple(lacking)), []).append(tensor)
    rows = []
    for (operator, steps), members in by_operator.items():
        span = (steps[0], steps[-1], len(steps))
        _, graph, op_type, op_name, occurrence = operator
        if len(members) == whole[operator]:
            name = f"{op_type}.{op_name}" + (f"#{occurrence}" if occurrence else "")
            rows.append(Missing("operator", state, ranks, others, name, graph, len(members), *span))
            continue
        rows += [Missing("tensor", state, ranks, others, keys[one].name, graph, 1, *span) for one in members]
    return rows
