"""Search a store for the first operator that produced NaN, Inf, an overflow, or what a condition names.

A run may have several *episodes* of steps in a row that hold NaN or Inf: an overflow that loss scaling skips,
and weeks later a NaN that stays. The origin of an episode depends on its first step and on the steps before.
So it does not change when later steps arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from ingest.questions.origin.answer import OriginAnswer, parameter_read, source_of, tensors_of
from ingest.questions.origin.calls import Flow, Mask, bad_numbers, link_calls, rows_of
from ingest.questions.origin.roots import CAME_IN, Root, Suspects, Weight, real_roots, roots_of
from ingest.questions.origin.spread import (
    ALTERNATIVES,
    PassedBy,
    alternatives_to,
    first_overflow,
    notes_on_root,
    spread_of,
)
from ingest.questions.question import Mode, Option, Partial, Question, Ranks, Steps
from ingest.questions.why import WhyAnswer, explain
from ingest.reader.catalog import Catalog
from ingest.reader.operator_kinds import CallKey, is_collective, is_input, is_output
from ingest.reader.snapshot import LeftOut, Snapshot, take_snapshot
from ingest.reader.step import COLUMNS, Step
from ingest.reader.tensor import Tensor
from ingest.reader.text import counted
from workers.arrays.filter import Filter
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey

#: The type of operator of a gradient in dumps of PyTorch.
_GRADIENT = "Gradient"
#: Rank, call, `io` and slot of tensors, and what they hold.
_Pattern: TypeAlias = frozenset[tuple[int, CallKey, str, int, str]]
CAUSES = ("auto", "nan", "inf", "overflow")


def origin(
    store: Catalog,
    rank: Ranks = None,
    step: Steps = None,
    *,
    cause: Annotated[
        str, Option("What to look for: nan, inf, overflow, or auto: NaN or Inf, else an overflow.", "CAUSE")
    ] = "auto",
    where: Annotated[
        str | None,
        Option(
            'Look for tensors that fulfil this condition instead, such as "max > 6e4".',
            "CONDITION",
            short="-w",
        ),
    ] = None,
    include_partial: Partial = False,
) -> OriginAnswer:
    """Name the first operator that produced NaN or Inf from clean inputs, and how it spread.

    First means first in order of execution: by step, by collectives between ranks, and by the order in which
    operators ran on one rank. Clocks of different ranks are not compared. Infinity that others turned into
    finite numbers, such as a mask before softmax, is only mentioned in a note. What came from other ranks is
    not known if only some are chosen.

    Returns:
        What was found. Steps without anything bad are not read. Of the others, the indexes of those up to the
        first that matters are read, and of the next one. Memory: see `Suspects`.

    Raises:
        UsageError: one of the ranks or steps is not in the store, `where` is not a valid condition, or the
            cause is unknown.
    """
    if cause not in CAUSES:
        raise UsageError(f"no cause {cause!r}", hint=f"Causes: {', '.join(CAUSES)}; or a condition.")
    if where is not None and cause != "auto":
        raise UsageError("a cause and a condition exclude each other", hint="Give only one of them.")
    condition = Filter(where, COLUMNS) if where is not None else None
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    if condition is not None:
        answer = OriginSearch(snapshot, "where", condition, where or "").answer()
    elif cause == "overflow":
        answer = first_overflow(snapshot)
    else:
        answer = OriginSearch(snapshot, cause).answer()
    return replace(answer, looked_for=where or cause, store=store.url)


def _drawn(store: Catalog, drawn_as: str, **asked: Any) -> OriginAnswer:
    if drawn_as not in ("text", "dot"):
        raise UsageError(
            f"--graph {drawn_as}: there is no such format", hint="Formats: text, dot; or --json with either."
        )
    return replace(origin(store, **asked), drawn_as=drawn_as)


QUESTION = Question(
    origin,
    (
        "origin run.zarr",
        'origin run.zarr --where "abs(max) > 6e4"   the first such output',
    ),
    limit=None,
    modes=(
        Mode(
            "graph",
            Option("Print the whole spread within its step instead: text, or dot for Graphviz.", "FORMAT"),
            default=None,
            ask=_drawn,
            takes=frozenset({"rank", "step", "cause", "where", "include_partial"}),
        ),
    ),
)


@dataclass
class OriginSearch:
    """One search through the steps of a snapshot."""

    snapshot: Snapshot
    cause: str
    condition: Filter | None = None
    condition_text: str = ""
    _harmless: set[CallKey] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)
    """Steps in which nothing was made of what is bad."""
    skipped: set[int] = field(default_factory=set)
    """Steps in which gradients overflowed, and loss scaling skipped the update."""
    _passed_by: PassedBy = field(default_factory=PassedBy)
    _fallback: Sequence[Root] = ()
    _alike: dict[_Pattern, Sequence[Root]] = field(default_factory=dict)
    """The roots of steps that turned out to be harmless, by what they hold."""
    _unknown: int = 0

    @cached_property
    def _suspects(self) -> Suspects:
        return Suspects(self.snapshot, self._is_bad, self.cause)

    def answer(self) -> OriginAnswer:
        """Search step by step."""
        for step in self._suspects.steps():
            if (linked := self._linked(step)) is None:
                continue
            flow, roots = linked
            real = self._real_roots(roots)
            if real and not self._is_skipped_overflow(step, real):
                self._passed_by.add(root for root in roots if root.weight is not Weight.REAL)
                self._passed_by.add(self._fallback)
                return self._answer(real)
            self._pass_by(flow, roots, real)
        return self._answer(self._fallback) if self._fallback else self._nothing()

    def answers(self) -> Iterator[tuple[OriginAnswer, list[int]]]:
        """Yield the first root of each run of bad steps that matters, and the steps of the run.

        A run ends with a step that holds nothing, or no more than a harmless step. Overflows that loss
        scaling skipped are included, and are in `skipped` then.
        """
        last = -1
        for step in self._suspects.steps():
            if step <= last or (linked := self._linked(step)) is None:
                continue
            flow, roots = linked
            real = self._real_roots(roots)
            if not real:
                self._pass_by(flow, roots, real)
                continue
            row = list(self._steps_in_a_row(step))
            last = row[-1] if row else step
            certain = [later for later in row if self._suspects.certain_ranks(later)]
            if self._is_skipped_overflow(step, real) and all(map(self._holds_overflow, row)):
                self.skipped.add(step)
            yield self._answer(real), [step, *certain]

    def _steps_in_a_row(self, first: int) -> Iterator[int]:
        """Yield the steps after a bad one, up to one that holds nothing, or no more than a harmless one."""
        steps = self.snapshot.steps
        for step in steps[steps.index(first) + 1 :]:
            is_worrying = self._suspects.ranks(step) and (
                self._suspects.worrying_ranks(step) or self._real_roots(self._link(step)[1])
            )
            if not is_worrying:
                return
            yield step

    def _pass_by(self, flow: Flow, roots: Sequence[Root], real: Sequence[Root]) -> None:
        if roots and all(root.is_unread for root in roots):
            self.unread.add(flow.step)
        candidates = real or [root for root in roots if root.weight is Weight.ABSORBED]
        if candidates and not self._fallback:
            self._fallback = candidates
        else:
            self._passed_by.add(candidates)
        self._passed_by.add(root for root in roots if root.weight is Weight.HARMLESS)
        # The same amount of infinity that operators made may matter in the next step.
        if not candidates:
            self._suspects.mark_harmless(flow.step, flow.traces)
            if pattern := self._pattern(flow.step):
                self._alike[pattern] = roots

    def _is_bad(self, step: Step) -> Mask:
        if self.condition is not None:
            mask = np.zeros(len(step.tables.labels), bool)
            mask[step.rows(self.condition)] = True
            return mask
        return bad_numbers(step, nan=self.cause != "inf", inf=self.cause != "nan")

    def _real_roots(self, roots: list[Root]) -> list[Root]:
        if self.condition is not None:
            return sorted(roots, key=lambda root: (root.is_weak, root.order))
        self._harmless |= {root.call.key for root in roots if root.weight is Weight.HARMLESS}
        return real_roots(roots, self._harmless)

    def _linked(self, step: int) -> tuple[Flow, list[Root]] | None:
        """Return the flow of a step and its roots; None if the same tensors are bad as in a harmless one."""
        alike = self._alike.get(self._pattern(step))
        if not alike:
            return self._link(step)
        self._passed_by.add(alike, step)
        return None

    def _pattern(self, step: int) -> _Pattern:
        """Return which tensors of a step hold what; nothing if some of them are not known."""
        traces = self._suspects.trace(step, self._suspects.ranks(step)).values()
        if self.condition is not None or any(trace.unknown for trace in traces):
            return frozenset()
        return frozenset(
            (call.rank, call.key, operand.io, operand.slot, operand.holds)
            for trace in traces
            for call in trace.calls
            for operand in (*call.bad_inputs, *call.bad_outputs)
        )

    def _link(self, step: int) -> tuple[Flow, list[Root]]:
        """Return the flow of the ranks with something bad, and of all if they tell more; and its roots."""
        traces = self._suspects.trace(step, self._suspects.ranks(step))
        flow = link_calls(step, traces)
        roots = roots_of(flow)
        self._unknown += sum(trace.unknown for trace in traces.values())
        # Another rank may have put something bad into a collective although all its dumped tensors are clean.
        has_lone_collective = any(root.how != CAME_IN and is_collective(root.call.op_type) for root in roots)
        others = [rank for rank in self.snapshot.of_step(step) if rank not in traces]
        if has_lone_collective and others:
            traces = dict(sorted({**traces, **self._suspects.trace(step, others)}.items()))
            flow = link_calls(step, traces)
            roots = roots_of(flow)
        return flow, roots

    def _is_skipped_overflow(self, step: int, real: Sequence[Root]) -> bool:
        """Return whether gradients overflowed and loss scaling skipped the step: the next one is clean.

        Either an operator checks that gradients are finite; or all that is bad are gradients, infinity among
        them, and no parameter is another one before the next clean step.
        """
        if self.condition is not None or any(root.leads_to("parameters") for root in real):
            return False
        if any(root.leads_to("checks") for root in real):
            later = [other for other in self.snapshot.steps if other > step]
            return bool(later) and not self._suspects.ranks(later[0])
        return _are_overflows(real) and self._is_left_out(step)

    def _holds_overflow(self, step: int) -> bool:
        return _are_overflows(self._real_roots(self._link(step)[1]))

    def _is_left_out(self, step: int) -> bool:
        """Return whether no parameter is another one in the steps after a bad one, up to the first clean."""
        later = [other for other in self.snapshot.steps if other > step]
        clean = next((place for place, other in enumerate(later) if not self._suspects.ranks(other)), None)
        own = self._parameters(step)
        known = later[: clean + 1] if clean is not None and own else []
        return bool(known) and all(self._parameters(other) == own for other in known)

    def _parameters(self, step: int) -> dict[tuple[int, str], bytes]:
        """Return the digests of the parameters of a step by rank and name; none if one is not known."""
        digests: dict[tuple[int, str], bytes] = {}
        for rank, opened in self.snapshot.of_step(step).items():
            names = opened.tables.label("op_name")
            rows = np.flatnonzero(opened.tables.label("op_type") == "Parameter").tolist()
            digests |= {(rank, str(names[row])): opened.tables.digest[row].tobytes() for row in rows}
            opened.forget_tables()
        return digests if all(map(any, digests.values())) else {}

    def _answer(self, roots: Sequence[Root]) -> OriginAnswer:
        root, *others = roots
        call = root.call
        step = self.snapshot.chosen[StepKey(call.rank, call.step)]
        bad = self._is_bad(step)
        inputs, outputs = tensors_of(step, call, bad)
        source, fused_from = source_of(self.snapshot, step, call)
        parameter = parameter_read(root)
        # As far as it was searched for: what holds infinity may hold NaN, too.
        holds = root.holds or "NaN or Inf"
        holds = "Inf" if self.cause == "inf" and holds == "NaN" else holds
        apposition = f" (Parameter {parameter})" if parameter else ""
        # Before the notes: it reads the next step, and may find it damaged.
        spread = spread_of(root, self._suspects, self._harmless)
        notes = [
            *notes_on_root(root, others, step, self._suspects, self._harmless),
            *self._notes_on_search(),
        ]
        answer = OriginAnswer(
            cause=("nan" if root.holds in ("NaN", "") else "inf") if self.cause == "auto" else self.cause,
            how=root.how,
            what=self.condition_text or holds,
            rank=call.rank,
            step=call.step,
            graph=call.key.graph,
            op_type=call.op_type,
            op_name=call.op_name,
            occurrence=call.key.occurrence,
            came_in=None if root.operand is None else f"{call.name_of(root.operand)}{apposition}",
            fused_from=fused_from,
            source=source,
            inputs=inputs,
            outputs=outputs,
            why=None if self.condition is not None else self._why(step, root, bad, notes),
            spread=spread,
            alternatives=tuple(
                islice(alternatives_to(root, others, is_condition=self.condition is not None), ALTERNATIVES)
            ),
            notes=tuple(dict.fromkeys(notes)),
            left_out=self.left_out,
        )
        step.forget_tables()
        return answer

    def _why(self, step: Step, root: Root, bad: Mask, notes: list[str]) -> WhyAnswer | None:
        """Return why a root is bad, if elements tell; add a note if they are damaged."""
        inputs, outputs = _explained_by(step, root, bad)
        try:
            if not outputs:
                return None
            return explain(root.call.op_type, inputs, outputs[0], infinity=self.cause == "inf")
        except DamagedStore as exc:
            notes.append(
                f"why it is bad is not known, because elements are damaged: {exc.message}. {exc.hint}"
            )
            return None

    def _nothing(self) -> OriginAnswer:
        answer = first_overflow(self.snapshot) if self.cause == "auto" else OriginAnswer(None)
        left_out = {left.key: left for left in (*answer.left_out, *self.left_out)}
        notes = (*answer.notes, *self._notes_on_search())
        return replace(answer, notes=notes, left_out=tuple(left_out.values()))

    def _notes_on_search(self) -> Iterator[str]:
        yield from self._passed_by.notes()
        if self._unknown and self.condition is None:
            they_hold = "it holds" if self._unknown == 1 else "they hold"
            tensors = counted(self._unknown, "tensor")
            yield f"Of {tensors} it is not known whether {they_hold} NaN or Inf."

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The steps that the search is not about, as far as it has come."""
        return (*self.snapshot.left_out, *self._suspects.damaged)


def _explained_by(step: Step, root: Root, bad: Mask) -> tuple[list[Tensor], list[Tensor]]:
    """Return the inputs of the operator of a root, and what of its outputs is bad; or the input that was."""
    if root.operand is not None:
        return [], [Tensor(step, root.operand.row)]
    tensors = [Tensor(step, row) for row in rows_of(step, root.call.key)]
    inputs = [tensor for tensor in tensors if is_input(tensor.io)]
    outputs = [each for each in tensors if each not in inputs and is_output(each.io) and bad[each.row]]
    # An output with NaN before one with infinity: that may be a mask.
    return inputs, sorted(outputs, key=lambda tensor: not tensor.statistics.nan_count > 0)


def _are_overflows(real: Sequence[Root]) -> bool:
    """Return whether roots are gradients that lead to no parameter, infinity among them."""
    are_gradients = all(root.call.key.op_type == _GRADIENT for root in real)
    is_applied = any(root.leads_to("parameters") for root in real)
    return are_gradients and not is_applied and any("Inf" in root.holds for root in real)


@dataclass(frozen=True, slots=True)
class Episode:
    """Steps in a row that hold NaN or Inf."""

    origin: OriginAnswer
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    tensors: int
    """The number of tensors with NaN or Inf, over all of the steps and ranks."""


class FoundEpisodes(NamedTuple):
    """The episodes of a snapshot."""

    episodes: tuple[Episode, ...]
    left_out: tuple[LeftOut, ...]
    unread: frozenset[int]
    """The steps in which nothing was made of NaN and Inf."""
    skipped: frozenset[int]
    """The first steps of episodes in which loss scaling skipped the update."""


def episodes_of(snapshot: Snapshot) -> FoundEpisodes:
    """Return the episodes of a snapshot.

    Reads the indexes of the steps up to the first of each episode that hold something bad, and of the step
    after it. Of the other steps only their totals are used, however long an episode is. Infinity that others
    turned into finite numbers is not an episode.
    """
    search, episodes = OriginSearch(snapshot, "auto"), []
    for answer, steps in search.answers():
        summaries = (opened.commit.summary for step in steps for opened in snapshot.of_step(step).values())
        bad = [summary for summary in summaries if summary.anomalous_tensors]
        ranks = {summary.key.rank for summary in bad} | set(answer.spread.ranks)
        known = set(steps)
        within = tuple(later for later in answer.spread.steps if later.step in known)
        episodes.append(
            Episode(
                replace(answer, spread=replace(answer.spread, steps=within)),
                tuple(steps),
                tuple(sorted(ranks)),
                sum(summary.anomalous_tensors for summary in bad),
            )
        )
    return FoundEpisodes(
        tuple(episodes), search.left_out, frozenset(search.unread), frozenset(search.skipped)
    )
