"""A trainer against an engine, token by token: the first module that did other things to the same tokens.

And what differences come to: log-probabilities of the tokens that follow, and chosen experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from ingest.identities.definition import Array, wide
from ingest.questions.question import Note, Part, Shown, Table
from ingest.questions.rollout.diverging import (
    VERDICTS,
    ComparedModule,
    ModuleWalk,
    PictureColumn,
    TokenDivergence,
    shifted_tokens,
)
from ingest.questions.rollout.fibres import DIFFERENT, MISPLACED, STALE, Arrived, Program
from ingest.questions.rollout.routing import ExpertAgreement, RoutingAgreement, routing
from ingest.questions.rollout.sequences import (
    Lane,
    Lanes,
    Prefixes,
    SequencePair,
    Stream,
    sequence_pairs,
)
from ingest.questions.rollout.weights import ArrivedWeights, arrived_weights
from ingest.reader.operator_kinds import is_output
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import Plain, counted
from workers.arrays.digest import digest
from workers.errors import UsageError

#: The clip of PPO and GRPO, as trainers have it by default.
CLIP = 0.2


@dataclass(frozen=True, slots=True)
class LogProbabilities(Plain):
    """How both sides rate the tokens that followed; a ratio is the trainer's probability by the rollout's."""

    tokens: int
    k1: float
    """Mean of minus the logarithm of the ratio: the plain estimate of KL(rollout, trainer)."""
    k3: float
    """Mean of ratio - 1 - log(ratio), which is never negative (J. Schulman, "Approximating KL")."""
    largest: float
    """The largest ratio, or its inverse."""
    position: int
    """Where that is: the position of the token that follows."""
    clipped: int

    @property
    def text(self) -> str:
        """Say it in a line."""
        return (
            f"log-probabilities of {self.tokens} tokens: KL {self.k1:.3g} (k1), {self.k3:.3g} (k3), largest "
            f"ratio {self.largest:.4g} at position {self.position}, {self.clipped} outside {1 - CLIP} to "
            f"{1 + CLIP}"
        )


def log_probabilities(
    lanes: tuple[Lanes, Lanes], pairs: Sequence[SequencePair], prefixes: Prefixes
) -> LogProbabilities | None:
    """Return how both sides rate the tokens that followed; None if one has no logits."""
    found = {
        (pair.ranks[1], pair.sequences[1].number, at + 1): log
        for pair in pairs
        for at, log in _log_ratios(lanes, pair, prefixes)
    }
    if not found:
        return None
    logs = np.array([*found.values()])
    with np.errstate(over="ignore"):
        ratios = np.exp(logs)
        k3 = float(np.mean(ratios - 1 - logs))
    worst = int(np.abs(logs).argmax())
    clipped = int((np.abs(ratios - 1) > CLIP).sum())
    largest = math.exp(min(float(np.abs(logs).max()), 700.0))
    return LogProbabilities(len(logs), float(-logs.mean()), k3, largest, [*found][worst][2], clipped)


def _log_ratios(
    lanes: tuple[Lanes, Lanes], pair: SequencePair, prefixes: Prefixes
) -> Iterator[tuple[int, float]]:
    sides = [lanes[side][pair.ranks[side]] for side in (0, 1)]
    streams = [stream for lane in sides if (stream := _logits(lane)) is not None]
    if len(streams) < len(sides):
        return
    parts = [*zip(sides, streams, (pair.places(side)[:-1] for side in (0, 1)), strict=True)]
    known = np.logical_and.reduce([lane.has(stream, places) for lane, stream, places in parts])
    at = np.flatnonzero(known).tolist()
    following = [prefixes.token[pair.sequences[0].prefixes[each + 1]] for each in at]
    a, b = (_rated(lane.values(stream, places[known]), following) for lane, stream, places in parts)
    yield from ((each, one - other) for each, one, other in zip(at, a, b, strict=True))


def _logits(lane: Lane) -> Stream | None:
    held = lane.parameters.get(f"{lane.embedding}.weight")
    count = 0 if held is None else held.shape[0]
    found = [each for each in lane.streams if is_output(each.io) and lane.width(each) == count]
    return found[-1] if found and count else None


def _rated(values: Array | None, tokens: Sequence[int]) -> list[float]:
    x = np.zeros((0, 1)) if values is None else wide(values)
    top = x.max(axis=1)
    sums = top + np.log(np.exp(x - top[:, None]).sum(axis=1))
    return list((x[np.arange(len(x)), np.array(tokens, np.int64)] - sums).tolist())


@dataclass(frozen=True, slots=True)
class TokenComparison(Shown, Plain):
    """A trainer and a rollout, compared token by token."""

    trainer: str
    rollout: str
    step: int
    rollout_step: int
    tokens: int
    """Of the rollout, without padding."""
    matched: int
    """Those that the trainer has with the same tokens before them."""
    open_tokens: int
    """Those of which it is not known to which sequence they belong."""
    weights: tuple[str, ...]
    divergence: TokenDivergence | None
    modules: tuple[ComparedModule, ...]
    """In the order in which the trainer runs them."""
    log_probabilities: LogProbabilities | None
    """None if a side has no logits."""
    routing: tuple[RoutingAgreement, ...]
    growth: tuple[tuple[int, float], ...]
    """First positions 0, 1, 2, 4, 8, ..., and how far the rows of the last module up to the next are apart,
    as `ComparedModule.units`."""
    unpaired: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    columns: tuple[PictureColumn, ...] = field(repr=False)
    """What `by_token` of the modules is about."""
    arrived: ArrivedWeights = field(repr=False)
    """Where each parameter of the rollout comes from."""

    hidden = ("columns", "arrived")
    also = ("first_unequal",)

    @property
    def first_unequal(self) -> str:
        """The first module with an element that is not equal bit for bit; "" if all are."""
        return next((each.module for each in self.modules if each.unequal), "")

    @property
    def is_alarm(self) -> bool:
        """Whether weights did not arrive, a module diverges, or experts of one side alone dropped tokens."""
        is_dropped = any(each.dropped for each in self.routing)
        return bool(self.weights) or self.divergence is not None or is_dropped

    def table(self) -> Table[ComparedModule]:
        """Return a row for each pair of modules, the divergence first."""
        return Table(
            {
                "verdict": lambda each: each.verdict,
                "module": lambda each: each.module,
                "rollout": lambda each: each.rollout_module,
                "units": lambda each: f"{each.units:.3g}",
                "largest": lambda each: f"{each.largest:.3g}",
                "at position": lambda each: str(each.position),
            },
            sorted(self.modules, key=lambda each: VERDICTS.index(each.verdict)),
            "module",
            right=("units", "largest", "at position"),
            spare=("at position", "rollout"),
        )

    def table_of_experts(self) -> Table[tuple[str, ExpertAgreement]]:
        """Return a row for each expert that both sides do not use for the same tokens."""
        numbers: dict[str, Callable[[tuple[str, ExpertAgreement]], int]] = {
            "expert": lambda each: each[1].expert,
            "tokens of the trainer": lambda each: each[1].trainer,
            "of the rollout": lambda each: each[1].rollout,
            "of both": lambda each: each[1].both,
            "dropped by the trainer": lambda each: each[1].trainer_dropped,
            "by the rollout": lambda each: each[1].rollout_dropped,
        }
        rows = [(of.module, each) for of in self.routing for each in of.experts]
        return Table({"router": lambda each: each[0], **numbers}, rows, "expert", right=[*numbers])

    def report(self) -> Iterator[Part]:
        """Yield what people read."""
        yield (
            f"step {self.rollout_step} of the rollout against step {self.step} of the trainer: "
            f"{self.matched} of {counted(self.tokens, 'token')} matched, "
            f"{counted(len(self.modules), 'module')} paired"
        )
        if not self.matched:
            yield "no token of the rollout follows tokens that the trainer has: even the first ones differ"
        for text in self.weights:
            yield f"the weights did not arrive: {text}"
        if self.divergence is not None:
            yield f"first divergence: {self.divergence.text}"
        elif not self.is_alarm and self.modules:
            yield "no divergence: rounding explains every difference that could be recomputed"
        if self.first_unequal:
            yield f"equal bit for bit up to {self.first_unequal}, which is the first that is not"
        yield from self._outcomes()
        yield self.table()
        if self.growth:
            told = ", ".join(f"{first}: {units:.3g}" for first, units in self.growth)
            yield f"units of the last module by first position: {told}"
        yield from self._notes()

    def _notes(self) -> Iterator[Part]:
        if self.open_tokens:
            yield Note(f"{counted(self.open_tokens, 'token')}: it is not known of which sequence", "open")
        if self.unpaired:
            some = ", ".join(self.unpaired[:3]) + (", ..." if len(self.unpaired) > 3 else "")
            yield Note(f"{counted(len(self.unpaired), 'module')} without a counterpart: {some}", "open")

    def _outcomes(self) -> Iterator[Part]:
        if self.log_probabilities is not None:
            yield self.log_probabilities.text
        for each in [each for each in self.routing if each.other or each.dropped][:1]:
            yield f"routing: {each.text}"


def compare_tokens(trainer: str, rollout: str) -> TokenComparison:
    """Compare TRAINER and ROLLOUT token by token: the first module that did other things to the same tokens.

    Both are stores or dumps with elements of inputs and outputs of modules, and of parameters, such as
    `ingest.record(model, ..., what="tensors", of=("inputs", "outputs", "parameters"))` writes them. A row is
    known by the token ids before it: padding, packing, chunks, caches and the order of a batch do not matter.
    Modules are paired by their weights. Each is recomputed in float64 from what it read, on both sides: what
    rounding explains does not count.

    Args:
        trainer: `STORE`, or `STORE@step=N`; without a step, that of ROLLOUT, or the last.
        rollout: the same; without a step, the last one. Earlier ones with the same parameters belong to it.

    Raises:
        UsageError: a side has no parameters with elements, no token ids, or not that step.
        DamagedStore: elements are damaged.
    """
    sides = Program(trainer), Program(rollout)
    weights = arrived_weights(*sides)
    lanes = _lanes(sides[0], weights.step), _lanes(sides[1], weights.rollout_step)
    prefixes = _assigned(lanes)
    pairs = [*sequence_pairs(*lanes)]
    matched = {(pair.ranks[1], place) for pair in pairs for place in pair.places(1).tolist()}
    walk = ModuleWalk(lanes, weights, pairs, prefixes)
    modules = tuple(walk.modules())  # before the divergence, which they find
    return TokenComparison(
        weights.trainer,
        weights.rollout,
        weights.step,
        weights.rollout_step,
        sum(lane.tokens for lane in lanes[1].values()),
        len(matched),
        sum(lane.unassigned for lane in lanes[1].values()),
        _wrong(weights.tensors),
        walk.divergence or (None if pairs else shifted_tokens(*lanes)),
        modules,
        log_probabilities(lanes, pairs, prefixes),
        tuple(routing(lanes, walk.links, pairs, prefixes)),
        walk.growth(),
        walk.unpaired,
        weights.left_out,
        walk.columns,
        weights,
    )


def _wrong(tensors: Sequence[Arrived]) -> tuple[str, ...]:
    bad = (each for each in tensors if each.verdict in (STALE, DIFFERENT, MISPLACED))
    return tuple(f"{each.name} is {each.verdict}, {each.text}" for each in bad)


def _assigned(lanes: Sequence[Mapping[int, Lane]]) -> Prefixes:
    prefixes = Prefixes()
    for of_side in sorted(lanes, key=lambda of_side: sum(lane.doubts for lane in of_side.values())):
        known = len(prefixes.token) if len(prefixes.token) > 1 else 0
        for lane in of_side.values():
            lane.assign(prefixes, known)
    return prefixes


def _lanes(program: Program, step: int) -> dict[int, Lane]:
    """Return by rank what a side recorded in a step, and in those before it with the same parameters.

    Raises:
        UsageError: no module read token ids.
    """
    steps = _steps_with(program, step)
    every = [Lane(program, rank, steps) for rank in sorted({key.rank for key in program.source.keys})]
    lanes = {lane.rank: lane for lane in every if lane.calls}
    held_by = {lane.rank: lane.parameters for lane in every}
    for each in program.parameters(step):
        held_by[each.rank][each.name] = each
    if not lanes:
        raise UsageError(
            f"{program.label}: step {step} has no module that reads token ids",
            hint='Record it with what="tensors" and of=("inputs", "outputs", "parameters").',
        )
    return lanes


def _steps_with(program: Program, step: int) -> list[int]:
    earlier = [each for each in program.steps if each < step]
    held = _contents(program, step) if earlier else []
    return sorted({step, *takewhile(lambda before: _contents(program, before) == held, earlier[::-1])})


def _contents(program: Program, step: int) -> list[tuple[int, str, bytes]]:
    with suppress(UsageError):
        return [
            (each.rank, each.name, each.operand.digest or digest(each.read().reshape(-1).view(np.uint8).data))
            for each in program.parameters(step)
        ]
    return []
