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
    LEAST,
    LEFT_OUT,
    MARKS,
    MOMENTUM,
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
#: How near it must be to the parameter's own rate in the step before.
_OWN_RATE = 0.1
#: By how many limits what fails by the rates of others is off: eps is not known as well for it as for them.
_FAR = 64.0
#: How many times those of the step before a rate and a change are that jump: no schedule does so for a step.
_JUMP = 10.0
#: What is told of a parameter that stays the same although it has a gradient.
NOT_UPDATED = "not updated"
#: What is told of a parameter that changes otherwise.
UNKNOWN = "an update that none of the known optimizers gives"
#: The share of parameters that must follow from an optimizer before it is named.
_SURE = 0.75
#: At least one parameter in this many must follow from it: vectors may have another optimizer than matrices.
_FEW = 4
#: How well a parameter must know its rate for it to be told: that of the bias of keys, all noise, is a guess.
_TELLING = 1e-3
#: How many parameters tell a rate that they have in common.
_BEST = 24
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
    told_before: str = ""
    """What the update of the step before told."""
    is_read: bool = True
    """Whether the gradient is known to be that which the optimizer has read."""

    @property
    def moved(self) -> float:
        """The largest change of an element."""
        return float(np.abs(wide(self.after) - self.known.value).max(initial=0.0))

    @property
    def is_ambiguous(self) -> bool:
        """Whether several optimizers make this of a parameter.

        Their first updates are alike, and so are the second ones of momentum with Nesterov's look-ahead and
        without. After an update that followed from nothing, one that does may by chance.
        """
        family, before = family_of(self.found.told), family_of(self.told_before)
        is_second = before.startswith("SGD") and not before.startswith(MOMENTUM)
        return not self.told_before or (family.startswith(MOMENTUM) and is_second)

    @property
    def tells_rate(self) -> bool:
        """Whether it shows the rate that is told well enough."""
        fit = self.known.fits.get(self.found.told)
        return fit is None or fit.doubt_of_rate <= _TELLING

    def check(self, norm: float) -> None:
        """Hold it against its gradient, with what rates it shows; `norm` is that of all gradients."""
        if not self.known.value.shape == self.after.shape == self.gradient.shape:
            self.found = IdentityCheck("open", "parameter of another shape")
        elif not self.after.size:  # of an axis that is shorter than there are ranks
            self.found = IdentityCheck("open", "a shard without elements")
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
            self._check_by_others(rates)
        known, moved, jumps = self.known, self.moved, self._jumps()
        self.told_before = known.told
        value = float(np.abs(known.value).max())
        known.follow(wide(self.after), self.gradient, self.found.told if self.found.status == "holds" else "")
        if self.found.status == "fails":  # momentum goes on from another change
            known.change = known.lost = None
        self.found = self._told(moved, jumps, unit_roundoff(self.after.dtype) * value)
        if self.found.status == "fails" and (reason := _other_gradient(self.found, self.gradient)):
            self.found = IdentityCheck("open", reason)

    def _check_by_others(self, rates: Sequence[KnownRates]) -> None:
        own = self.found
        self.check_with(rates)
        if self.found.status == "open":  # each may have a rate of its own
            self.found = own
        if self.found.status == "fails" and self.found.times < _FAR:
            self.found = _OPEN

    def _told(self, moved: float, jumps: str, visible: float) -> IdentityCheck:
        """Return what is known and told: `moved` is the largest change, `visible` the least that shows."""
        found, size = self.found, float(np.abs(self.gradient).max(initial=0.0))
        if found.status == "holds":
            return replace(found, times=size / moved, told=found.told + jumps) if moved else found
        if found.status != "open":
            return found
        if moved:
            return IdentityCheck("open", UNKNOWN) if self.after.size >= LEAST else found
        if not (size and self.is_read):
            return found
        return IdentityCheck("open", NOT_UPDATED, size / visible if visible else np.inf)


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
    families = Counter(map(family_of, told))
    least = max(1, _MOST * sum(each.found.status == "fails" for each in updates))
    is_sure = len(told) >= _SURE * (len(told) + sum(each.found.told == UNKNOWN for each in updates))
    for each in updates:
        found = each.found
        if found.status == "fails" and not _is_clear(found, told, least, each.told_before):
            found = IdentityCheck("open", "in doubt")
        is_plain = found.status == "holds" and not any(mark in found.told for mark in MARKS)
        # What holds for few parameters alone may hold by chance, as where a gradient is rounding noise.
        is_usual = _FEW * families[family_of(found.told)] >= len(told)
        # If another optimizer was told first, one of the two fits by chance.
        is_first = family_of(each.found.told).startswith(each.known.family)
        is_named = is_sure and is_usual and not each.is_ambiguous and is_first
        if is_plain and is_named:
            each.known.family = each.known.family or family_of(found.told)
        is_told = is_named and each.tells_rate if is_plain else is_sure or found.status != "holds"
        yield each, found if is_told else replace(found, told="")


def _usual_rates(holding: Sequence[ParameterUpdate]) -> list[KnownRates]:
    """Return what parameters showed, of the optimizer that most of them have; those that know a rate best."""
    families = Counter(family_of(each.found.told) for each in holding)
    usual = max(families, key=families.__getitem__, default="")
    by_rate: dict[object, list[KnownRates]] = {}
    for each in holding:
        known = each.known.fits.get(each.found.told)
        if known is not None and family_of(each.found.told) == usual:
            alike = len(known.coefficients), f"{rate_of(each.found.told):.2g}"
            by_rate.setdefault(alike, []).append(known)
    best = (sorted(alike, key=lambda known: known.doubt_of_rate)[:_BEST] for alike in by_rate.values())
    return [known for alike in best for known in alike]


def _is_clear(found: IdentityCheck, told: Sequence[str], least: int, before: str) -> bool:
    """Return whether an update that fails has the rate of many others, and enough elements to tell that.

    Or it has nearly the rate that it had before: Adafactor has one for each parameter.
    """
    rates = [rate_of(one) for one in told if family_of(one) == family_of(found.told)]
    # Of fewer elements, none is left out of the fit: what is wrong with one decides on the rates.
    is_large = found.difference is not None and found.difference.size * LEFT_OUT >= 1
    last = rate_of(before) if family_of(before) == family_of(found.told) else np.nan
    near = ((np.median(rates or [np.nan]), _SAME_RATE), (last, _OWN_RATE))
    is_usual = any(abs(rate_of(found.told) / rate - 1) < share for rate, share in near)
    return is_large and is_usual and len(rates) > least


def _other_gradient(found: IdentityCheck, gradient: Array) -> str:
    """Return why another gradient may have been read where a check saw a difference; "" if none was."""
    spot = found.difference
    if spot is None:
        return ""
    box = tuple(slice(*each) for each in spot.box)
    sizes = np.abs(gradient)
    if np.median(sizes[box]) <= _NOISE * np.median(sizes):
        return "what has no gradient is updated otherwise"
    largest = np.zeros(sizes.shape, bool)
    largest.flat[np.argpartition(sizes, -spot.elements, axis=None)[-spot.elements :]] = True
    # Those of earlier steps that were clipped are in the moments, in rows of large gradients.
    may_be_clipped = largest[box].sum() == spot.elements or (spot.where, spot.how) == ("rows", "other")
    return "its largest gradients may be clipped, each by itself" if may_be_clipped else ""


def of_unshared(found: IdentityCheck) -> IdentityCheck:
    """Return a check of an update of which it is a guess what gradient was read: it fails by no guess."""
    if any(mark in found.told for mark in MARKS):
        return found
    # Sum or mean: what the rate is, is not known.
    is_proved = found.status == "holds"
    return replace(found, told="") if is_proved else IdentityCheck("open", "ranks do not share the gradient")
