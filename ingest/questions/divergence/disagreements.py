"""Where tensors that must agree do not, and which ranks are off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ingest.questions.divergence.expectations import Expectations, TensorHistory
from ingest.questions.divergence.observation import Observation
from ingest.questions.divergence.partitions import BlockVerdict, Partition
from ingest.questions.divergence.result import Difference
from ingest.questions.placement.slot_kinds import WORDS


@dataclass(slots=True)
class GroupCounts:
    """How many tensors must agree in a group, and how many do."""

    tensors: int = 0
    compared: int = 0
    """Tensors and steps."""
    agreed: int = 0
    """Tensors and steps."""


class _Culprit(NamedTuple):
    """Which ranks are off, and in which group."""

    places: tuple[int, ...]
    has_majority: bool
    block: tuple[int, ...]


@dataclass(slots=True)
class TensorDisagreement:
    """Where one tensor, or several that behave alike, are off."""

    places: tuple[int, ...]
    has_majority: bool
    others: tuple[int, ...]
    """The ranks that agree, given by their places; empty without a majority."""
    by_statistics: bool
    numbers: list[int] = field(default_factory=list)
    """The steps, given by their places in order."""
    healed: bool = False
    """Whether the ranks agree again in a later step."""


class DifferingTensor(NamedTuple):
    """A difference, the number of its tensor, and the steps in which it differs, by their places in order."""

    tensor: int
    difference: Difference
    numbers: list[int]


class DisagreementFinder:
    """Judges tensors that behave alike, and counts what agrees in each group."""

    def __init__(
        self, expectations: Expectations, observation: Observation, ranks: Sequence[int], steps: Sequence[int]
    ) -> None:
        """Judge by these expectations; `ranks` and `steps` are named in the answer."""
        self._expectations, self._observation = expectations, observation
        self._ranks, self._steps = ranks, steps
        self.groups: dict[tuple[int, ...], GroupCounts] = {}
        """By the places of its ranks."""

    def find(
        self, tensors: Sequence[int], history: TensorHistory, expected: Partition
    ) -> Iterator[DifferingTensor]:
        """Yield where these tensors, which behave alike, do not agree as they must."""
        for disagreement in self._judge(history, expected, len(tensors)):
            for tensor in tensors:
                yield DifferingTensor(
                    tensor, self._difference(tensor, history, disagreement), disagreement.numbers
                )

    def _judge(self, history: TensorHistory, expected: Partition, tensors: int) -> list[TensorDisagreement]:
        disagreements: dict[_Culprit, TensorDisagreement] = {}
        agreed_last: dict[tuple[int, ...], int] = {}
        for block in expected:
            self.groups.setdefault(block, GroupCounts()).tensors += tensors
        for number, pattern in enumerate(history.patterns):
            for verdict in self._expectations.verdicts(pattern, expected):
                counts = self.groups[verdict.block]
                counts.compared += tensors
                if verdict.agrees:
                    counts.agreed += tensors
                    agreed_last[verdict.block] = number
                    continue
                for culprit in _culprits(verdict):
                    others = verdict.agreeing if verdict.has_majority else ()
                    disagreements.setdefault(
                        culprit,
                        TensorDisagreement(
                            culprit.places, verdict.has_majority, others, verdict.by_statistics
                        ),
                    ).numbers.append(number)
        _settle_ties(disagreements)
        for culprit, disagreement in disagreements.items():
            disagreement.healed = agreed_last.get(culprit.block, -1) > disagreement.numbers[-1]
        return list(disagreements.values())

    def _difference(
        self, tensor: int, history: TensorHistory, disagreement: TensorDisagreement
    ) -> Difference:
        numbers = disagreement.numbers
        return Difference(
            key=self._observation.keys[tensor],
            ranks=self._named(disagreement.places),
            has_majority=disagreement.has_majority,
            others=self._named(disagreement.others),
            why=WORDS[history.kind],
            first_step=self._steps[numbers[0]],
            last_step=self._steps[numbers[-1]],
            steps=len(numbers),
            healed=disagreement.healed,
            by="statistics" if disagreement.by_statistics else "digest",
            same_statistics=self._has_same_statistics(tensor, disagreement),
        )

    def _has_same_statistics(self, tensor: int, disagreement: TensorDisagreement) -> bool:
        """Return whether the digests differ in the first step, and no statistic does."""
        number = int(self._observation.statistics[disagreement.numbers[0], tensor])
        if number < 0 or disagreement.by_statistics:
            return False
        labels = self._observation.patterns[number]
        places = (*disagreement.places, *disagreement.others[:1])
        return len({int(labels[place]) for place in places}) == 1

    def _named(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._ranks[place] for place in places)


def _culprits(verdict: BlockVerdict) -> Iterator[_Culprit]:
    """Yield each odd rank; without a majority, all ranks that were compared as one."""
    if verdict.has_majority:
        for place in verdict.odd:
            yield _Culprit((place,), True, verdict.block)  # noqa: FBT003  (a field of a tuple)
    else:
        yield _Culprit(verdict.odd, False, verdict.block)  # noqa: FBT003  (a field of a tuple)


def _settle_ties(disagreements: dict[_Culprit, TensorDisagreement]) -> None:
    """Count a difference of two ranks against the one that a majority showed to be off in another step."""
    for culprit, tie in list(disagreements.items()):
        if culprit.has_majority or len(culprit.places) != 2:
            continue
        alone = (_Culprit((place,), True, culprit.block) for place in culprit.places)  # noqa: FBT003  (as above)
        known = [disagreements[rank] for rank in alone if rank in disagreements]
        if len(known) == 1:
            known[0].numbers = sorted({*known[0].numbers, *tie.numbers})
            del disagreements[culprit]
