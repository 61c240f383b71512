"""What an optimizer made of the parameters of a step: of each by itself, and with the rates of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ingest.identities.check import IdentityCheck, check
from ingest.identities.definition import Array, wide
from ingest.identities.limits import unit_roundoff
from ingest.identities.optimizer import (
    JUMPED,
    LEFT_OUT,
    KnownRates,
    ParameterHistory,
    family_of,
    rate_of,
)

#: Gradients of this share of the usual ones may be zero in exact arithmetic, as those of the bias of keys.
_NOISE = 2.0**-10
#: How many parameters must follow from their gradients for each that does not.
_MOST = 3
#: How near the rate of a parameter that fails must be to that of others.
_SAME_RATE = 0.01
#: By how many limits what fails by the rates of others is off: eps is not known as well for it as for them.
_FAR = 64.0
#: How many times those of the step before a rate and a change are that jump: no schedule does so for a step.
_JUMP = 10.0
#: What is told of a parameter that stays the same although it has a gradient.
NOT_UPDATED = "not updated"
_OPEN = IdentityCheck("open")


@dataclass(slots=True)
class ParameterUpdate:
    """One parameter, and what an optimizer made of it."""

    row: int
    known: ParameterHistory
    gradient: Array
    after: Array
    found: IdentityCheck = field(default_factory=lambda: _OPEN)
    is_checked: bool = False

    @property
    def moved(self) -> float:
        """The largest change of an element."""
        return float(np.abs(wide(self.after) - self.known.value).max(initial=0.0))

    def check(self, norm: float) -> None:
        """Hold it against its gradient, with what rates it shows; `norm` is that of all gradients."""
        if not self.known.value.shape == self.after.shape == self.gradient.shape:
            self.found = IdentityCheck("open", "parameter of another shape")
        elif not np.isfinite(norm):  # a step that is left out, as GradScaler does; else anything goes
            self.found = _OPEN if self.moved else IdentityCheck("holds", "step left out")
        else:
            self.known.advance(self.gradient, norm)
            self.is_checked = True
            self.check_with(())

    def check_with(self, rates: Sequence[KnownRates]) -> None:
        """Hold it against its gradient, with the rates of other parameters; by default, with its own."""
        with np.errstate(all="ignore"):
            made = self.known.expectations(self.gradient, self.after, rates)
            self.found = check(self.after, ((each, False) for each in made))

    def _jumps(self) -> str:
        """Return what is told of an update whose rate and change are far larger than those before."""
        before = 0.0 if self.known.change is None else float(np.abs(self.known.change).max())
        rate = rate_of(self.found.told) / rate_of(self.known.told)
        return JUMPED if before and min(rate, self.moved / before) > _JUMP else ""

    def finish(self, rates: Sequence[KnownRates]) -> None:
        """Say what it tells, by the rates of others if not by its own, and take it as the last value."""
        if not self.is_checked:
            return
        if self.found.status != "holds" and self.moved and rates:
            self.check_with(rates)
            self.found = _OPEN if self.found.status == "fails" and self.found.times < _FAR else self.found
        found, known = self.found, self.known
        moved, size = self.moved, float(np.abs(self.gradient).max(initial=0.0))
        jumps = self._jumps()
        known.follow(wide(self.after), self.gradient, found.told if found.status == "holds" else "")
        if found.status == "open" and not moved and size:
            visible = unit_roundoff(self.after.dtype) * float(np.abs(known.value).max())
            found = IdentityCheck("open", NOT_UPDATED, size / visible if visible else np.inf)
        elif found.status == "holds" and moved:
            found = replace(found, times=size / moved, told=found.told + jumps)
        elif found.status == "fails" and _lacks_gradient(found, self.gradient):
            found = IdentityCheck("open", "what has no gradient is updated otherwise")
        self.found = found


def judged(
    updates: Sequence[ParameterUpdate], norm: float
) -> Iterator[tuple[ParameterUpdate, IdentityCheck]]:
    """Yield the updates of a step and what is known of each.

    What an optimizer is, is found from the data. So one parameter fails only if most of the others follow
    from their gradients in the same way; and of one that does not tell its rates, those of the others are.

    Args:
        updates: the parameters that changed, or not.
        norm: that of all gradients of the step.
    """
    for each in updates:
        each.check(norm)
    rates = _usual_rates([each for each in updates if each.found.status == "holds"])
    for each in updates:
        each.finish(rates)
    yield from _without_doubtful(updates)


def _without_doubtful(
    updates: Sequence[ParameterUpdate],
) -> Iterator[tuple[ParameterUpdate, IdentityCheck]]:
    told = [each.found.told for each in updates if each.found.status == "holds"]
    least = max(1, _MOST * sum(each.found.status == "fails" for each in updates))
    for each in updates:
        is_doubtful = each.found.status == "fails" and not _is_clear(each.found, told, least)
        yield each, IdentityCheck("open", "in doubt") if is_doubtful else each.found


def _usual_rates(holding: Sequence[ParameterUpdate]) -> list[KnownRates]:
    """Return what parameters showed, of the optimizer that most of them have."""
    families = Counter(family_of(each.found.told) for each in holding)
    usual = max(families, key=families.__getitem__, default="")
    told = [each.known.fits.get(each.found.told) for each in holding if family_of(each.found.told) == usual]
    return [rates for rates in told if rates is not None]


def _is_clear(found: IdentityCheck, told: Sequence[str], least: int) -> bool:
    """Return whether an update that fails has the rate of many others, and enough elements to tell that."""
    rates = [rate_of(one) for one in told if family_of(one) == family_of(found.told)]
    # Of fewer elements, none is left out of the fit: what is wrong with one decides on the rates.
    is_large = found.difference is not None and found.difference.size * LEFT_OUT >= 1
    is_usual = len(rates) > least and abs(rate_of(found.told) / np.median(rates) - 1) < _SAME_RATE
    return is_large and bool(is_usual)


def _lacks_gradient(found: IdentityCheck, gradient: Array) -> bool:
    """Return whether the gradient is zero, or rounding noise, wherever a check saw a difference."""
    spot = found.difference
    if spot is None:
        return False
    there = np.abs(gradient[tuple(slice(*each) for each in spot.box)])
    return bool(np.median(there) <= _NOISE * np.median(np.abs(gradient)))
