"""How much of a model is looked at in a step, so that looking costs no more than a share of the step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

#: The weight of the newest step in what a module is taken to cost.
_NEWEST = 0.3


class LookBudget:
    """Chooses modules in turn, as many as what was not spent so far pays for. All in the first step.

    Args:
        share: of the time of a step, without what looking costs; above 0.
        names: of all modules that may be looked at.
    """

    def __init__(self, share: float, names: Sequence[str]) -> None:
        self.names = names
        self.spent_s = self.steps_s = 0.0
        """What looking has cost since the second step, and how long the steps took without it."""
        self._share = share
        self._credit_s = 0.0
        self._cost_s = 0.0
        self._at = 0
        self._looked = len(names)
        self._is_first = True

    def choose(self) -> Collection[str]:
        """Return the modules to look at in the next step."""
        if not self._is_first:
            affordable = int(self._credit_s / self._cost_s) if self._cost_s > 0 else len(self.names)
            self._looked = min(max(affordable, 0), len(self.names))
        turn = (*self.names[self._at :], *self.names[: self._at])[: self._looked]
        self._at = (self._at + self._looked) % max(len(self.names), 1)
        return frozenset(turn)

    def charge(self, spent_s: float, step_s: float) -> None:
        """Note what a step cost.

        Args:
            spent_s: processor time of looking and writing, in seconds.
            step_s: how long the step took without looking.
        """
        if self._looked:
            cost_s = spent_s / self._looked
            self._cost_s += (cost_s - self._cost_s) * (1 if self._is_first else _NEWEST)
        allowed_s = self._share * step_s
        if self._is_first:  # which also loads and compiles what looks, and is not charged
            self._is_first, self._credit_s = False, allowed_s
            return
        self.spent_s, self.steps_s = self.spent_s + spent_s, self.steps_s + step_s
        # Not more than pays for a module, or for two steps: a budget is not saved up for a slow step.
        most_s = max(2 * allowed_s, self._cost_s + allowed_s)
        self._credit_s = min(self._credit_s + allowed_s - spent_s, most_s)
