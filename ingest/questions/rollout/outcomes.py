"""What differences of modules come to: log-probabilities of the tokens that follow, and chosen experts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ingest.identities.definition import Array, wide
from ingest.identities.limits import limit_of
from ingest.questions.rollout.linked import Lanes, ModuleLink, SequencePair
from ingest.questions.rollout.recomputed import products
from ingest.questions.rollout.sequences import Lane, Prefixes, Stream, TokenSequence
from ingest.reader.operator_kinds import is_output
from ingest.reader.text import Plain

#: The clip of PPO and GRPO, as trainers have it by default.
CLIP = 0.2
#: Tokens that an answer names by router.
_NAMED = 8
_ROUTER = re.compile(r"(?:^|\.)(?:gate|router)(?:\.|$)")


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
    """Tokens whose ratio is outside 0.8 to 1.2."""

    @property
    def text(self) -> str:
        """Say it in a line."""
        return (
            f"log-probabilities of {self.tokens} tokens: KL {self.k1:.3g} (k1), {self.k3:.3g} (k3), largest "
            f"ratio {self.largest:.4g} at position {self.position}, {self.clipped} outside {1 - CLIP} to "
            f"{1 + CLIP}"
        )


@dataclass(frozen=True, slots=True)
class MovedToken(Plain):
    """A token that chose other experts on both sides."""

    sequence: int
    """The number of the sequence in the trainer."""
    position: int
    token: int
    trainer: tuple[int, ...]
    """The experts that it chose there."""
    rollout: tuple[int, ...]
    is_tie: bool
    """Whether the logits of the last chosen expert and of the next are as close as rounding is large."""


@dataclass(frozen=True, slots=True)
class RoutingAgreement(Plain):
    """Whether tokens chose the same experts in one layer."""

    module: str
    tokens: int
    chosen: int
    """Experts of each token."""
    other: int
    """Tokens that chose others."""
    ties: int
    """Those of them whose logits are as close as rounding is large; the others follow from what was read."""
    moved: tuple[MovedToken, ...]
    """The first tokens that chose others."""

    @property
    def text(self) -> str:
        """Say it in a line."""
        first = "".join(
            f", first token {each.token} at position {each.position} of sequence {each.sequence}: "
            f"{'+'.join(map(str, each.trainer))} and {'+'.join(map(str, each.rollout))}"
            for each in self.moved[:1]
        )
        return (
            f"{self.module}: {self.other} of {self.tokens} tokens chose other experts, {self.chosen} each"
            f"{first}; {self.ties} are ties within the limit, the others follow from what was read"
        )


def log_probabilities(
    lanes: tuple[Lanes, Lanes], pairs: Sequence[SequencePair], prefixes: Prefixes
) -> LogProbabilities | None:
    """Return how both sides rate the tokens that followed; None if one has no logits."""
    found: dict[tuple[int, int, int], float] = {}
    for pair in pairs:
        for at, log in _log_ratios(lanes, pair, prefixes):
            found[pair.ranks[1], pair.sequences[1].number, at + 1] = log
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
    """Yield positions, and the logarithm of the ratio for the token that follows."""
    sides = [lanes[side][pair.ranks[side]] for side in (0, 1)]
    streams = [stream for lane in sides if (stream := _logits(lane)) is not None]
    if len(streams) < len(sides):
        return
    parts = [*zip(sides, streams, pair.sequences, strict=True)]
    places = [at for at in range(pair.length - 1) if _have(parts, at)]
    following = [prefixes.token[pair.sequences[0].prefixes[at + 1]] for at in places]
    a, b = (_rated(lane, stream, sequence, places, following) for lane, stream, sequence in parts)
    yield from ((at, one - other) for at, one, other in zip(places, a, b, strict=True))


def _have(parts: Sequence[tuple[Lane, Stream, TokenSequence]], at: int) -> bool:
    """Return whether all sides have logits at a position."""
    return all(lane.has(stream, sequence.places[at]) for lane, stream, sequence in parts)


def _logits(lane: Lane) -> Stream | None:
    """Return the last output with a number for each token of the vocabulary."""
    held = lane.parameters.get(f"{lane.embedding}.weight")
    count = 0 if held is None else held.shape[0]
    found = [each for each in lane.streams if is_output(each.io) and lane.width(each) == count]
    return found[-1] if found and count else None


def _rated(
    lane: Lane, stream: Stream, sequence: TokenSequence, places: Sequence[int], tokens: Sequence[int]
) -> list[float]:
    """Return the log-probabilities of tokens that follow places of a sequence."""
    values = lane.values(stream, [sequence.places[at] for at in places]) if places else None
    x = np.zeros((len(places), 1)) if values is None else wide(values)
    top = x.max(axis=1)
    sums = top + np.log(np.exp(x - top[:, None]).sum(axis=1))
    rated: list[float] = (x[np.arange(len(x)), tokens] - sums).tolist()
    return rated


def routing(
    lanes: tuple[Lanes, Lanes],
    links: Sequence[ModuleLink],
    pairs: Sequence[SequencePair],
    prefixes: Prefixes,
) -> Iterator[RoutingAgreement]:
    """Yield by router, in the order of the trainer, whether tokens chose the same experts."""
    for link in links:
        chosen = _experts_of_a_token(lanes[0][link.ranks[0]], link.modules[0])
        if not _ROUTER.search(link.modules[0]) or not chosen:
            continue
        counts, moved = np.zeros(3, np.int64), list[MovedToken]()
        for pair in (pair for pair in pairs if pair.ranks == link.ranks):
            if (found := _chosen(lanes, link, pair, chosen)) is None:
                continue
            experts, is_tie = found
            other = (experts[0] != experts[1]).any(axis=1)
            counts += len(other), other.sum(), (other & is_tie).sum()
            first = pair.sequences[0]
            moved += [
                MovedToken(
                    first.number,
                    at,
                    prefixes.token[first.prefixes[at]],
                    tuple(experts[0][at].tolist()),
                    tuple(experts[1][at].tolist()),
                    bool(is_tie[at]),
                )
                for at in np.flatnonzero(other).tolist()
            ]
        if counts[0]:
            tokens, others, ties = counts.tolist()
            yield RoutingAgreement(link.modules[0], tokens, chosen, others, ties, tuple(moved[:_NAMED]))


def _chosen(
    lanes: tuple[Lanes, Lanes], link: ModuleLink, pair: SequencePair, chosen: int
) -> tuple[list[Array], Array] | None:
    """Return by side the experts of each token, (token, expert) in order; and which choices are ties."""
    sides = [lanes[side][link.ranks[side]] for side in (0, 1)]
    a, b = (
        lane.values(lane.outputs[module], sequence.places[: pair.length])
        for lane, module, sequence in zip(sides, link.modules, pair.sequences, strict=True)
    )
    if a is None or b is None or a.shape != b.shape or a.shape[1] <= chosen:
        return None
    experts = [np.sort(np.argsort(-wide(each), axis=1, kind="stable")[:, :chosen]) for each in (a, b)]
    return experts, _ties(sides, link, pair, (a, b), chosen)


def _ties(
    sides: Sequence[Lane], link: ModuleLink, pair: SequencePair, logits: tuple[Array, Array], chosen: int
) -> Array:
    """Return by token whether the last expert that was chosen leads the next by no more than rounding."""
    limits = np.zeros(len(logits[0]))
    for lane, module, sequence, values in zip(sides, link.modules, pair.sequences, logits, strict=True):
        weight = lane.parameters.get(f"{module}.weight")
        read = [
            x
            for each in lane.streams
            if each.module == module and each.io == "input"
            if (x := lane.values(each, sequence.places[: pair.length])) is not None
        ]
        made = next(iter(products(read[0], weight.read(), None, values)), None) if weight and read else None
        if made is not None:
            limits += limit_of(made.value, made.error, values.dtype).max(axis=1)
    ranked = -np.sort(-wide(logits[0]), axis=1)
    return np.asarray(ranked[:, chosen - 1] - ranked[:, chosen] <= 2 * limits)


def _experts_of_a_token(lane: Lane, router: str) -> int:
    """Return how many experts a token chooses: by indices, or by the rows that experts read; 0: not known."""
    stem = router.rpartition(".")[0]
    for stream in lane.streams:
        if stream.module in (router, stem) and lane.dtype(stream).startswith("int"):
            return lane.width(stream)
    call = lane.calls[0]
    rows = {
        stream.module: call.tensors.shapes[number][0]
        for stream, number in call.streams.items()
        if re.fullmatch(re.escape(f"{stem}.experts.") + r"\d+", stream.module) and stream.io == "input"
    }
    return round(sum(rows.values()) / len(call.ids)) if rows else 0
