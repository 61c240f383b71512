"""Whether tokens chose the same experts on both sides, by layer and expert, and whether these took them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ingest.identities.definition import Array, wide
from ingest.identities.limits import limit_of
from ingest.questions.rollout.diverging import SIDES
from ingest.questions.rollout.recomputed import products
from ingest.questions.rollout.sequences import Lane, Lanes, ModelCall, ModuleLink, Prefixes, SequencePair
from ingest.reader.text import Plain, counted

#: Tokens that an answer names by router.
_NAMED = 8
_ROUTER = re.compile(r"(?:^|\.)(?:gate|router)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class MovedToken(Plain):
    """A token that chose other experts on both sides."""

    sequence: int
    position: int
    token: int
    trainer: tuple[int, ...]
    rollout: tuple[int, ...]
    is_tie: bool
    """Whether the logits of the last chosen expert and of the next are as close as rounding is large."""


@dataclass(frozen=True, slots=True)
class DroppedToken(Plain):
    """A token that an expert did not get on one side, for its capacity, though it was chosen on both."""

    sequence: int
    position: int
    token: int
    expert: int
    side: str
    """The side that dropped it."""


@dataclass(frozen=True, slots=True)
class ExpertAgreement(Plain):
    """How many tokens chose one expert, and how many it dropped."""

    expert: int
    trainer: int
    rollout: int
    both: int
    trainer_dropped: int
    rollout_dropped: int


@dataclass(frozen=True, slots=True)
class RoutingAgreement(Plain):
    """Whether tokens chose the same experts in one layer."""

    module: str
    tokens: int
    chosen: int
    other: int
    ties: int
    """Those of them whose logits are as close as rounding is large; the others follow from what was read."""
    moved: tuple[MovedToken, ...]
    experts: tuple[ExpertAgreement, ...]
    """Those that not the same tokens chose, or that dropped tokens of only one side."""
    dropped: int
    """Choices that both sides made, and that only one of them dropped: its expert did not get the token."""
    first_dropped: tuple[DroppedToken, ...]

    @property
    def text(self) -> str:
        """Say it in a line or two."""
        texts = (self._moved_text() if self.other else "", self._dropped_text() if self.dropped else "")
        return f"{self.module}: {'; '.join(filter(None, texts))}"

    def _dropped_text(self) -> str:
        first = self.first_dropped[0]
        return (
            f"{counted(self.dropped, 'choice')} of experts that one side alone dropped, first that of expert "
            f"{first.expert} by token {first.token} at position {first.position} of sequence "
            f"{first.sequence}: dropped by the {first.side}"
        )

    def _moved_text(self) -> str:
        first = "".join(
            f", first token {each.token} at position {each.position} of sequence {each.sequence}: "
            f"{'+'.join(map(str, each.trainer))} and {'+'.join(map(str, each.rollout))}"
            for each in self.moved[:1]
        )
        return (
            f"{self.other} of {self.tokens} tokens chose other experts, {self.chosen} each"
            f"{first}; {self.ties} are ties within the limit, the others follow from what was read"
        )


class _Router:
    """What is counted of one router."""

    def __init__(self, lanes: tuple[Lanes, Lanes], link: ModuleLink) -> None:
        self._sides = [
            *zip((lanes[side][rank] for side, rank in enumerate(link.ranks)), link.modules, strict=True)
        ]
        self._link = link
        self.chosen = _experts_of_a_token(*self._sides[0])
        self.counts = np.zeros(3, np.int64)
        """Tokens, those with other experts, and ties among these."""
        self._by_expert = np.zeros((5, 1), np.int64)
        """As the fields of `ExpertAgreement`."""
        self._moved: list[MovedToken] = []
        self._lost: list[DroppedToken] = []

    def look(self, pair: SequencePair, prefixes: Prefixes) -> None:
        """Count the tokens of one sequence, if both sides have their logits."""
        a, b = (
            lane.values(lane.outputs[module], pair.places(side))
            for side, (lane, module) in enumerate(self._sides)
        )
        if a is None or b is None or a.shape != b.shape or a.shape[1] <= self.chosen:
            return
        choices = [_chosen(each, self.chosen) for each in (a, b)]
        drops = [
            _dropped(lane, module, pair.places(side), choices[side])
            for side, (lane, module) in enumerate(self._sides)
        ]
        first = pair.sequences[0]
        ids = [prefixes.token[each] for each in first.prefixes[: pair.length]]
        ties = _ties([lane for lane, _ in self._sides], self._link, pair, (a, b), self.chosen)
        self._add(first.number, ids, choices, drops, ties)

    def _add(
        self, sequence: int, ids: Sequence[int], choices: Sequence[Array], drops: Sequence[Array], ties: Array
    ) -> None:
        """Count one sequence: by side, which experts tokens chose, and which of them dropped these."""
        a, b = choices
        other = (a != b).any(axis=1)
        self.counts += len(other), other.sum(), (other & ties).sum()
        self._by_expert = self._by_expert + [each.sum(axis=0) for each in (a, b, a & b, *drops)]
        for at in np.flatnonzero(other).tolist():
            ours, theirs = (tuple(np.flatnonzero(each[at]).tolist()) for each in choices)
            self._moved.append(MovedToken(sequence, at, ids[at], ours, theirs, bool(ties[at])))
        for at, expert in np.argwhere(a & b & (drops[0] ^ drops[1])).tolist():
            side = SIDES[int(drops[1][at, expert])]
            self._lost.append(DroppedToken(sequence, at, ids[at], expert, side))

    def agreement(self) -> RoutingAgreement:
        """Return what was counted."""
        every = (ExpertAgreement(expert, *of) for expert, of in enumerate(self._by_expert.T.tolist()))
        lost = {token.expert for token in self._lost}
        experts = tuple(
            each for each in every if not each.trainer == each.rollout == each.both or each.expert in lost
        )
        tokens, others, ties = self.counts.tolist()
        named = tuple(self._moved[:_NAMED]), tuple(self._lost[:_NAMED])
        module, many = self._link.modules[0], len(self._lost)
        return RoutingAgreement(module, tokens, self.chosen, others, ties, named[0], experts, many, named[1])


def routing(
    lanes: tuple[Lanes, Lanes],
    links: Sequence[ModuleLink],
    pairs: Sequence[SequencePair],
    prefixes: Prefixes,
) -> Iterator[RoutingAgreement]:
    """Yield by router, in the order of the trainer, whether tokens chose the same experts."""
    for link in (link for link in links if _ROUTER.search(link.modules[0])):
        router = _Router(lanes, link)
        for pair in (pair for pair in pairs if router.chosen and pair.ranks == link.ranks):
            router.look(pair, prefixes)
        if router.counts[0]:
            yield router.agreement()


def _chosen(logits: Array, count: int) -> Array:
    """Return which experts tokens choose, (token, expert)."""
    best = np.argsort(-wide(logits), axis=1, kind="stable")[:, :count]
    chosen = np.zeros(logits.shape, bool)
    np.put_along_axis(chosen, best, 1, axis=1)
    return chosen


def _dropped(lane: Lane, router: str, places: Array, chosen: Array) -> Array:
    """Return which chosen experts did not get a token: none where that is not known."""
    stem = router.rpartition(".")[0]
    maps = (
        lane.values(each, places)
        for each in lane.streams
        if each.module in (router, stem)
        and lane.dtype(each) == "bool"
        and lane.width(each) == chosen.shape[1]
    )
    served = next(maps, None)
    if served is None:
        served = _served(lane, router, places, chosen.shape[1])
    return np.zeros_like(chosen) if served is None else np.asarray(chosen & ~served)


def _served(lane: Lane, router: str, places: Array, count: int) -> Array | None:
    """Return which experts read the rows that a router read; None if they read something else."""
    stem = f"{router.rpartition('.')[0]}.experts."
    read = next((each for each in lane.streams if each.module == router and each.io == "input"), None)
    own = None if read is None else lane.values(read, places)
    if read is None or own is None:
        return None
    wholes, modules = _as_wholes(own, own.dtype), _experts_held(lane, stem)
    # Experts of other ranks tell nothing here.
    served = np.array([each not in modules for each in range(count)])[None, :].repeat(len(places), 0)
    for call, (expert, module) in product(lane.calls_of(places), modules.items()):
        taken = _as_wholes(_read_by(call, module, own), own.dtype)
        # Rows of zeros fill up what an expert could take.
        there = call.read(call.streams[read]).reshape(-1, own.shape[1])
        known = np.concatenate([there, np.zeros_like(own[:1])])
        if not np.isin(taken, _as_wholes(known, own.dtype)).all():
            return None
        served[:, expert] |= np.isin(wholes, taken)
    return served


def _experts_held(lane: Lane, stem: str) -> dict[int, str]:
    """Return by number the experts of a layer that are modules of a rank."""
    last = {name.removeprefix(stem).partition(".")[0] for name in lane.parameters if name.startswith(stem)}
    return {int(each): f"{stem}{each}" for each in last if each.isdecimal()}


def _read_by(call: ModelCall, module: str, like: Array) -> Array:
    """Return the rows that a module read in a call; none if it was not called."""
    numbers = [number for stream, number in call.streams.items() if stream[1:3] == (module, "input")]
    return call.read(numbers[0]) if numbers else like[:0]


def _as_wholes(rows: Array, dtype: np.dtype[Any]) -> Array:
    """Return each row as one value, equal if all of its bytes are."""
    cast = np.ascontiguousarray(rows.reshape(-1, rows.shape[-1]).astype(dtype, copy=False))
    return cast.view(np.dtype((np.void, cast.shape[1] * cast.itemsize)))[:, 0]


def _ties(
    sides: Sequence[Lane], link: ModuleLink, pair: SequencePair, logits: tuple[Array, Array], chosen: int
) -> Array:
    """Return by token whether the last expert that was chosen leads the next by no more than rounding."""
    limits = np.zeros(len(logits[0]))
    for side, (lane, module, values) in enumerate(zip(sides, link.modules, logits, strict=True)):
        weight = lane.parameters.get(f"{module}.weight")
        read = [
            x
            for each in lane.streams
            if each.module == module and each.io == "input"
            if (x := lane.values(each, pair.places(side))) is not None
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
    return -(-sum(rows.values()) // len(call.ids))  # rounded up, because they may have dropped some
