"""Where all chance comes from: a seed, or a recorded list that is replayed and shortened."""

from __future__ import annotations

import random
from collections.abc import Sequence


class Choices:
    """Numbers drawn from a seed. 0 is always the plainest choice: no fault, no other actor."""

    def __init__(self, seed: int) -> None:
        """Begin at the first choice of this seed."""
        self._random = random.Random(seed).random

    def pick(self, count: int) -> int:
        """Return a number from 0 to `count` - 1, all equally likely."""
        return int(self._random() * count)

    def rare(self, rate: float, count: int) -> int:
        """Return 0, or at this rate a number from 1 to `count`."""
        if self._random() >= rate:
            return 0
        return 1 + int(self._random() * count)


class Recorded(Choices):
    """The same, with a record of what was chosen."""

    def __init__(self, seed: int) -> None:
        """Begin at the first choice of this seed, with an empty record."""
        super().__init__(seed)
        self.record: list[int] = []

    def pick(self, count: int) -> int:
        """Choose and record."""
        choice = super().pick(count)
        self.record.append(choice)
        return choice

    def rare(self, rate: float, count: int) -> int:
        """Choose and record."""
        choice = super().rare(rate, count)
        self.record.append(choice)
        return choice


class Replayed(Recorded):
    """Choices from a list, and the plainest ones when it has ended."""

    def __init__(self, choices: Sequence[int]) -> None:
        """Begin at the first of these choices."""
        super().__init__(0)
        self._choices = iter(choices)

    def pick(self, count: int) -> int:
        """Return the next choice; one that is out of range counts modulo `count`."""
        choice = next(self._choices, 0) % count
        self.record.append(choice)
        return choice

    def rare(self, rate: float, count: int) -> int:
        """Return the next choice; what cannot happen at this rate does not."""
        choice = next(self._choices, 0) % (count + 1) if rate else next(self._choices, 0) * 0
        self.record.append(choice)
        return choice
