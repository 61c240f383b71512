"""A trainer against an engine, token by token: the first module that did other things to the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from ingest.questions.compare.selection import parse_selection
from ingest.questions.compare.sources import Source, open_source
from ingest.questions.question import Note, Part, Shown, Table
from ingest.questions.rollout.diverging import (
    VERDICTS,
    ComparedModule,
    ModuleWalk,
    TokenDivergence,
    shifted_tokens,
)
from ingest.questions.rollout.linked import sequence_pairs
from ingest.questions.rollout.outcomes import LogProbabilities, RoutingAgreement, log_probabilities, routing
from ingest.questions.rollout.parameters import parameters_of
from ingest.questions.rollout.sequences import Lane, Prefixes
from ingest.questions.rollout.stretches import DIFFERENT, MISPLACED, STALE, Arrived
from ingest.questions.rollout.weights import compare_weights
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import Plain, counted
from workers.errors import UsageError


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
    """What of the weights did not arrive."""
    divergence: TokenDivergence | None
    modules: tuple[ComparedModule, ...]
    """In the order in which the trainer runs them."""
    log_probabilities: LogProbabilities | None
    """None if a side has no logits."""
    routing: tuple[RoutingAgreement, ...]
    """By router."""
    growth: tuple[tuple[int, float], ...]
    """First positions 0, 1, 2, 4, 8, ..., and how far the rows of the last module up to the next are apart,
    as `ComparedModule.units`."""
    unpaired: tuple[str, ...]
    """Modules with weights, of the trainer or of the rollout, that have no counterpart."""
    left_out: tuple[LeftOut, ...] = ()

    also = ("first_unequal",)

    @property
    def first_unequal(self) -> str:
        """The first module with an element that is not equal bit for bit; "" if all are."""
        return next((each.module for each in self.modules if each.unequal), "")

    @property
    def is_alarm(self) -> bool:
        """Whether weights did not arrive, or a module diverges."""
        return bool(self.weights) or self.divergence is not None

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
        elif not self.weights and self.modules:
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
        for each in [each for each in self.routing if each.other][:1]:
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
    weights = compare_weights(trainer, rollout)
    sides = [open_source(parse_selection(name)) for name in (trainer, rollout)]
    lanes = [
        _lanes(side, step) for side, step in zip(sides, (weights.step, weights.rollout_step), strict=True)
    ]
    prefixes = _assigned(lanes)
    pairs = [*sequence_pairs(*lanes)]
    matched = {(pair.ranks[1], place) for pair in pairs for place in pair.sequences[1].places[: pair.length]}
    shifted = None if pairs else shifted_tokens(*lanes)
    walk = ModuleWalk((lanes[0], lanes[1]), weights, pairs, prefixes)
    modules = [*walk.modules()]
    return TokenComparison(
        weights.trainer,
        weights.rollout,
        weights.step,
        weights.rollout_step,
        sum(lane.tokens for lane in lanes[1].values()),
        len(matched),
        sum(lane.unassigned for lane in lanes[1].values()),
        _wrong(weights.tensors),
        walk.divergence or shifted,
        tuple(modules),
        log_probabilities(walk.lanes, pairs, prefixes),
        tuple(routing(walk.lanes, walk.links, pairs, prefixes)),
        walk.growth(),
        walk.unpaired,
        weights.left_out,
    )


def _wrong(tensors: Sequence[Arrived]) -> tuple[str, ...]:
    """Return in words what of the weights did not arrive."""
    bad = (each for each in tensors if each.verdict in (STALE, DIFFERENT, MISPLACED))
    return tuple(f"{each.name} is {each.verdict}, {each.text}" for each in bad)


def _assigned(lanes: Sequence[Mapping[int, Lane]]) -> Prefixes:
    """Find the sequences of both sides, first of the one that needs the other one less."""
    prefixes = Prefixes()
    for of_side in sorted(lanes, key=lambda of_side: sum(lane.doubts for lane in of_side.values())):
        known = len(prefixes.token) if len(prefixes.token) > 1 else 0
        for lane in of_side.values():
            lane.assign(prefixes, known)
    return prefixes


def _lanes(source: Source, step: int) -> dict[int, Lane]:
    """Return by rank what a side recorded in a step, and in those before it with the same parameters.

    Raises:
        UsageError: no module read token ids.
    """
    steps = _steps_with(source, step)
    every = [Lane(source, rank, steps) for rank in sorted({key.rank for key in source.keys})]
    lanes = {lane.rank: lane for lane in every if lane.calls}
    held_by = {lane.rank: lane.parameters for lane in every}
    for each in parameters_of(source, step):
        held_by[each.rank][each.name] = each
    if not lanes:
        raise UsageError(
            f"{source.label}: step {step} has no module that reads token ids",
            hint='Record it with what="tensors" and of=("inputs", "outputs", "parameters").',
        )
    return lanes


def _steps_with(source: Source, step: int) -> list[int]:
    """Return a step and those before it with the same parameters."""
    held = _contents(source, step)
    earlier = sorted({key.step or 0 for key in source.keys if (key.step or 0) < step})
    return sorted({step, *takewhile(lambda before: _contents(source, before) == held, earlier[::-1])})


def _contents(source: Source, step: int) -> list[tuple[int, str, bytes]]:
    """Return what the parameters of a step hold; nothing if it has none."""
    with suppress(UsageError):
        return [
            (each.rank, each.name, each.fibres({each.dtype})[each.dtype].rows.tobytes())
            for each in parameters_of(source, step)
        ]
    return []
