"""Which operators of two runs are the same: what was guessed, and what only one of them has."""

from __future__ import annotations

import glob
from dataclasses import dataclass

from ingest.page.screen import Asked
from ingest.questions.compare import Comparison
from ingest.questions.compare.programs import OperatorGap

#: Guesses that are listed, and gaps.
_GUESSES, _GAPS = 40, 60


@dataclass(frozen=True, slots=True)
class PairingRow:
    """Two operators or tensors that were taken for the same, or one that only one run has."""

    name_a: str
    """"" if only B has it."""
    name_b: str
    """"" if only A has it."""
    why: str
    """How it was guessed, or what became of it; "" if that is not known."""
    url: str = ""
    """The operator in its run."""

    @property
    def is_guess(self) -> bool:
        """Whether both runs have it, as far as was guessed."""
        return bool(self.name_a and self.name_b)


@dataclass(frozen=True, slots=True)
class Pairing:
    """What the table of pairs shows."""

    summary: str
    """How many operators each run has, and both; "" if names tell all."""
    rows: tuple[PairingRow, ...]
    more: int
    """How many guesses and gaps are not listed."""


def pairing_of(asked: Asked, answer: Comparison, other: str) -> Pairing | None:
    """Return the operators that were paired by guess or that only one run has; None if all names agree.

    Args:
        asked: what is asked for, of A.
        answer: A against B.
        other: the name of B.
    """
    gaps = answer.programs.gaps if answer.programs is not None else ()
    if not gaps and not answer.guesses:
        return None
    guesses = [PairingRow(guess.name_a, guess.name_b, f"by {guess.how}") for guess in answer.guesses]
    return Pairing(
        str(answer.programs or ""),
        (*guesses[:_GUESSES], *(_row(asked, answer, other, gap) for gap in gaps[:_GAPS])),
        max(len(guesses) - _GUESSES, 0) + max(len(gaps) - _GAPS, 0),
    )


def _row(asked: Asked, answer: Comparison, other: str, gap: OperatorGap) -> PairingRow:
    is_a = gap.side == "A"
    step = answer.steps[0]
    key = step.key_a if is_a else step.key_b
    links = asked.links if is_a else asked.links.of_run(other)
    url = links.view("cell", rank=key.rank, step=key.step, name=f"{glob.escape(gap.name)}.*")
    return PairingRow(gap.name if is_a else "", "" if is_a else gap.name, str(gap), url)
