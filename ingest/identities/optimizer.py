"""What an optimizer makes of a parameter, with the rates that most elements show.

SGD, with momentum, decay or Nesterov's look-ahead, changes a parameter by a linear combination of the
gradient, its last change, the last gradient and the parameter itself, so that the last values tell all
coefficients. Adam and AdamW (D. P. Kingma and J. Ba, ICLR 2015; I. Loshchilov and F. Hutter, ICLR 2019),
NAdam (T. Dozat, 2016), RMSprop (T. Tieleman and G. Hinton, 2012), Lion (X. Chen et al., NeurIPS 2023),
Adafactor (N. Shazeer and M. Stern, ICML 2018) and Muon (K. Jordan et al., 2024) need the gradients since
their states were zero. The `eps` of Adam and the decay follow from one step, because an update
u = -lr (m / (sqrt(v) + eps) + d p) is linear in lr, eps, lr d and lr d eps:
lr m + u sqrt(v) + eps u + lr d p sqrt(v) + lr d eps p = 0.

Gradients are recorded before they are clipped. Those that are clipped in every step have one norm then, so
that the moments are those of gradients over the norm of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ingest.identities.definition import Array, Expectation, wide
from ingest.identities.limits import FEW, LAMBDA, sum_error, unit_roundoff

#: The rates of the moments of Adam that are tried.
_BETA, _BETAS = 0.9, (0.999, 0.95, 0.98, 0.99)
_ADAM_EPS = 1e-8
#: What PyTorch adds to a norm before it clips to it.
_CLIP_EPS = 1e-6
#: The norm is a sum in float32 over all elements, which rounds a few times more than the rest.
_OF_NORM = 4.0
#: A parameter of fewer elements does not tell the coefficients.
LEAST = 16
#: The rates of Lion that are tried: of the direction, and of the momentum.
_LION = ((0.9, 0.99), (0.95, 0.98))
#: The rates of the second moment of RMSprop that are tried.
_RMSPROP = (0.99, 0.9, 0.95)
#: How fast the first rate of NAdam comes near to that of Adam.
_NADAM = 0.004
#: The exponent of the rate of Adafactor's second moment, over the steps.
_ADAFACTOR = -0.8
#: The rate of Muon's momentum, and the polynomial that makes a matrix orthogonal in five steps.
_MUON, _NEWTON_SCHULZ, _ITERATIONS = 0.95, (3.4445, -4.7750, 2.0315), 5
#: Multiplications that this may take.
_MUON_COST = 1 << 31
#: The share of elements that a fit leaves out: those that it explains least.
LEFT_OUT = 0.02
#: Elements that it explains this many times worse than the median are left out, too. How often it is fitted.
_ODD, _REFITS = 32.0, 4
#: How many times what rounding may do the residue of a fit may be that tells how well it is known.
_NEAR = 4.0
#: Singular values of this share of the largest are zero, for each row of a matrix.
_SINGULAR = 1e-15
_WORKING = 2.0**-24
#: A share of the sizes of elements that is well above all rounding.
_VISIBLE = 2.0**-8
#: How many times the root of the second moment eps is, so that it alone decides how far Adam goes.
_DWARFED = 16.0
#: Elements that tell the coefficients of an update.
_FITTED = 1 << 16
#: Elements that tell whether an optimizer is worth fitting, and which share of them it must explain.
_TRIED, _FEWER = 256, 4
#: Elements that tell eps.
_SAMPLE = 4096
#: What is told of an update beside its rates; `ingest.questions.audit` looks for it.
RESET = ", states reset"
CLIPPED = ", clipped to one norm"
CLIPPED_AWAY = "gradients far below eps"
MOMENTUM = "SGD with momentum"
WITHOUT_GRADIENT = ", its momentum alone"
JUMPED = ", far more than before"
LOST = ", after an update that was lost"
#: Such parts of what is told may be a mistake; all else is what the optimizer does.
MARKS = (RESET, CLIPPED, WITHOUT_GRADIENT, JUMPED, LOST)


class _Model(NamedTuple):
    family: str
    terms: Sequence[Array]
    """The change is their sum, times coefficients. The first is the direction in which it goes."""
    sizes: Array
    """The magnitudes that were rounded to make the first term."""
    decay: int | None = None
    """Which term is the parameter itself."""
    lost: int | None = None
    """Which term tells that the last update was made, although the parameter does not show it."""
    momentum: int | None = None
    """Which term is the last change."""
    ahead: int | None = None
    """Which term is the last gradient, of which Nesterov takes as much off as momentum adds."""
    missing: Array | float = np.inf
    """What is not in the change: its lack tells something if rounding does not hide it."""

    def rate(self, coefficients: Array) -> float:
        """Return the learning rate."""
        return -float(coefficients[0]) - (0.0 if self.ahead is None else float(coefficients[self.ahead]))

    def doubt_of_rate(self, coefficients: Array, covariance: Array) -> float:
        """Return the standard deviation of the learning rate, relative to it."""
        summed = [0] if self.ahead is None else [0, self.ahead]
        return float(np.sqrt(covariance[np.ix_(summed, summed)].sum()) / self.rate(coefficients))

    def shown(self, coefficients: Array) -> Array:
        """Return the sizes that must be above rounding for a fit to tell anything."""
        shown = np.asarray(self.missing) / FEW
        if self.lost is not None:
            shown = np.abs(coefficients[self.lost] * self.terms[self.lost])
        if self.decay is not None:  # decay alone tells no rate
            shown = np.minimum(shown, np.abs(coefficients[0] * self.terms[0]))
        return shown

    def is_admissible(self, coefficients: Array, last_rate: float) -> bool:
        """Return whether an optimizer may have these coefficients: rates above 0, momentum below 1.

        Args:
            coefficients: those of the terms.
            last_rate: the learning rate of the step before; NaN if it is not known.
        """
        rate = self.rate(coefficients)
        if rate <= 0 or (self.decay is not None and coefficients[self.decay] > 0):
            return False
        if self.ahead is not None and not 0 < coefficients[self.ahead] < rate:
            return False
        carried = 0.5 if self.momentum is None else float(coefficients[self.momentum])
        # The last change was made with the last rate.
        return carried > 0 and not (self.momentum is not None and carried * last_rate >= rate)


def rate_of(told: str) -> float:
    """Return the learning rate that is told of an update; NaN if none is."""
    return float(told.partition(", lr = ")[2].partition(",")[0] or "nan")


def family_of(told: str) -> str:
    """Return what an optimizer does, without its rates, from what is told of an update."""
    return told.partition(", lr = ")[0]


@dataclass(slots=True)
class _Moments:
    """Those of Adam of the gradients since its states were zero, in float64."""

    count: int = 0
    first: Array | float = 0.0
    sizes: Array | float = 0.0
    second: dict[float, Array | float] = field(default_factory=lambda: dict.fromkeys(_BETAS, 0.0))
    product: float = 1.0
    """Of the first rates of NAdam."""

    def advance(self, gradient: Array) -> None:
        self.first = _BETA * self.first + (1 - _BETA) * gradient
        self.sizes = _BETA * self.sizes + (1 - _BETA) * np.abs(gradient)
        for rate in _BETAS:
            self.second[rate] = rate * self.second[rate] + (1 - rate) * gradient**2
        self.count += 1
        self.product *= _nadam_rate(self.count)

    def models(
        self, value: Array, change: Array, eps: float | None = None, told: str = ""
    ) -> Iterator[_Model]:
        """Yield Adam and AdamW, by default with the eps that most elements show."""
        scale = 1 / (1 - _BETA**self.count)
        first = np.asarray(self.first * scale)
        sizes = np.asarray(self.sizes * scale * (_OF_NORM if told == CLIPPED else 1.0))
        for rate in _BETAS[: 1 if self.count == 1 else None]:  # after one step, all are the same
            root = np.asarray(np.sqrt(self.second[rate] / (1 - rate**self.count)))
            family = f"Adam, betas = {_BETA}, {rate}{told}"
            known = _found_eps(first, root, value, change) if eps is None else eps
            divisor = root + known
            terms = [first / divisor, first / divisor**2]  # the second corrects eps
            is_lost = told == CLIPPED and known > _DWARFED * float(
                np.median(root[root > 0] if root.any() else 0)
            )
            name = f"{family}, {CLIPPED_AWAY}" if is_lost else family
            yield from _decayed(name, terms, value, sizes / divisor)

    def nadam(self, value: Array, gradient: Array) -> Iterator[_Model]:
        """Yield NAdam, which looks ahead by a part of the gradient."""
        now, after = _nadam_rate(self.count), _nadam_rate(self.count + 1)
        ahead, own = after / (1 - self.product * after), (1 - now) / (1 - self.product)
        divisor = np.sqrt(self.second[_BETAS[0]] / (1 - _BETAS[0] ** self.count)) + _ADAM_EPS
        direction, sizes = ahead * self.first + own * gradient, ahead * self.sizes + own * np.abs(gradient)
        terms = [direction / divisor, direction / divisor**2]
        yield from _decayed(f"NAdam, betas = {_BETA}, {_BETAS[0]}", terms, value, sizes / divisor)


def _nadam_rate(count: int) -> float:
    return float(_BETA * (1 - 0.5 * 0.96 ** (count * _NADAM)))


@dataclass(slots=True)
class _OtherStates:
    """Those of Lion, RMSprop, Adafactor and Muon of the gradients since they were zero, in float64."""

    count: int = 0
    lion: list[Array | float] = field(default_factory=lambda: [0.0] * len(_LION))
    sizes: Array | float = 0.0
    """The magnitudes that were added up in the momentum of Lion."""
    momentum: Array | float = 0.0
    """That of Muon."""
    means: list[Array | float] = field(default_factory=lambda: [0.0] * len(_RMSPROP))
    """The second moments of RMSprop."""
    squares: list[Array | float] = field(default_factory=lambda: [0.0, 0.0])
    """The second moment of Adafactor: by row and by column; of a vector, by element."""

    def advance(self, gradient: Array) -> None:
        self.count += 1
        self.lion = [
            slow * each + (1 - slow) * gradient for each, (_, slow) in zip(self.lion, _LION, strict=True)
        ]
        self.sizes = _LION[0][1] * self.sizes + (1 - _LION[0][1]) * np.abs(gradient)
        self.momentum = _MUON * self.momentum + gradient
        self.means = [
            rate * each + (1 - rate) * gradient**2 for each, rate in zip(self.means, _RMSPROP, strict=True)
        ]
        new, squares = self.count**_ADAFACTOR, gradient**2
        means = [squares.mean(axis, keepdims=True) if gradient.ndim > 1 else squares for axis in (-1, -2)]
        self.squares = [(1 - new) * old + new * mean for old, mean in zip(self.squares, means, strict=True)]

    def models(self, value: Array, gradient: Array, change: Array, last: Array | None) -> Iterator[_Model]:
        """Yield what they make of a gradient; `last` is the change before this one."""
        if self.count > 1:  # the first update of Lion and RMSprop is that of Adam
            yield from self._lion(value, gradient)
            yield from self._rmsprop(value, gradient, change, last)
        yield from self.adafactor(value, gradient)
        yield from self._muon(value, gradient)

    def _rmsprop(self, value: Array, gradient: Array, change: Array, last: Array | None) -> Iterator[_Model]:
        for rate, mean in zip(_RMSPROP, self.means, strict=True):
            root, told = np.sqrt(mean), f"alpha = {rate}"
            for eps in {_ADAM_EPS: 0, _found_eps(gradient, root, value, change) or _ADAM_EPS: 0}:
                divisor = root + eps
                terms, size = [gradient / divisor, gradient / divisor**2], np.abs(gradient) / divisor
                yield _Model(f"RMSprop, {told}", terms, size)
                if last is not None:
                    yield _Model(f"RMSprop with momentum, {told}", [*terms, last], size, momentum=2)

    def _lion(self, value: Array, gradient: Array) -> Iterator[_Model]:
        for (fast, slow), after in zip(_LION, self.lion, strict=True):
            before = (after - (1 - slow) * gradient) / slow
            mixed = fast * before + (1 - fast) * gradient
            sizes = np.asarray(self.sizes + np.abs(gradient))
            # Where rounding decides on the sign, nothing follows.
            doubt = np.where((np.abs(mixed) <= FEW * _WORKING * sizes) & (sizes > 0), np.inf, 1.0)
            yield from _decayed(f"Lion, betas = {fast}, {slow}", [np.sign(mixed)], value, doubt)

    def _muon(self, value: Array, gradient: Array) -> Iterator[_Model]:
        if gradient.ndim > 1 and gradient.size * min(gradient.shape[0], gradient[0].size) <= _MUON_COST:
            for told, update in ((", Nesterov", gradient + _MUON * self.momentum), ("", self.momentum)):
                matrix = np.asarray(update).reshape(len(gradient), -1)
                exact = _orthogonal(matrix, np.dtype(np.float64))
                for dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)):
                    # What rounding does to five steps is seen by doing them with it.
                    slack = LAMBDA * np.sqrt(np.mean((_orthogonal(matrix, dtype) - exact) ** 2))
                    if slack < np.sqrt(np.mean(exact**2)):
                        sizes = np.full(value.shape, slack / (FEW * _WORKING))
                        direction = exact.reshape(value.shape)
                        yield from _decayed(f"Muon, momentum = {_MUON}{told}", [direction], value, sizes)

    def adafactor(self, value: Array, gradient: Array, told: str = "") -> Iterator[_Model]:
        """Yield Adafactor."""
        rows, columns = (np.asarray(each) for each in self.squares)
        second = rows * columns / rows.mean(-2, keepdims=True) if gradient.ndim > 1 else rows
        direction = np.where(gradient, gradient, 0.0) / np.sqrt(np.where(second > 0, second, 1.0))
        sums = sum(sum_error(length, _WORKING) for length in gradient.shape[-2:]) / (FEW * _WORKING)
        yield from _decayed(f"Adafactor{told}", [direction], value, (1 + sums) * np.abs(direction))


def _decayed(
    family: str, terms: Sequence[Array], value: Array, sizes: Array, **more: int
) -> Iterator[_Model]:
    """Yield updates by some terms, without decay and with it; `more` names terms of a `_Model`."""
    yield _Model(family, terms, sizes, **more)
    yield _Model(family, [*terms, value], sizes, len(terms), **more)


def _orthogonal(matrix: Array, dtype: np.dtype[Any]) -> Array:
    """Return a matrix made nearly orthogonal by the iteration of Newton and Schulz, with this rounding."""
    a, b, c = _NEWTON_SCHULZ
    working = np.float64 if dtype == np.float64 else np.float32

    def rounded(each: Array) -> Array:
        return np.asarray(each.astype(dtype).astype(working))

    x = rounded(matrix / (np.linalg.norm(matrix) + 1e-7))
    x = x.T if len(x) > x.shape[1] else x
    for _ in range(_ITERATIONS):
        gram = rounded(x @ x.T)
        inner = rounded(rounded(b * gram) + rounded(rounded(c * gram) @ gram))
        x = rounded(rounded(a * x) + rounded(inner @ x))
    return np.asarray((x.T if len(matrix) > matrix.shape[1] else x).astype(np.float64))


def _found_eps(first: Array, root: Array, value: Array, change: Array) -> float:
    """Return the eps with which most elements follow; 0 if none is seen.

    From some thousand of them: by the linear equation, and then, as errors of the change disturb that, by
    some steps of Gauss and Newton.
    """
    step = max(1, first.size // _SAMPLE)
    m, r, p, u = (each.reshape(-1)[::step] for each in (first, root, value, change))
    begin = _least_squares(np.stack([m, u, p * r, p], 1), -u * r)
    if begin is None:
        return 0.0
    eps = float(begin[0][1])
    eps = eps if eps > 0 else _DWARFED * float(np.median(r))
    for _ in range(4):
        found = _least_squares(np.stack([m / (r + eps), m / (r + eps) ** 2, p], 1), u)
        if found is None or found[0][0] >= 0:
            return 0.0
        eps = max(eps - float(found[0][1] / found[0][0]), eps / 8)
    return eps


@dataclass(slots=True)
class ParameterHistory:
    """What is kept of a parameter from step to step, in float64: 22 numbers for each element."""

    value: Array
    gradient: Array | None = None
    change: Array | None = None
    lost: tuple[Array, Array] | None = None
    """If the last update changed nothing, and the one before did: that change, and the last gradient."""
    told: str = ""
    """What the last update showed."""
    family: str = ""
    """The first optimizer that it was said to have."""
    fits: dict[str, KnownRates] = field(default_factory=dict)
    """By what is told of an update."""
    moments: _Moments = field(default_factory=_Moments)
    clipped: _Moments = field(default_factory=_Moments)
    others: _OtherStates = field(default_factory=_OtherStates)

    @property
    def before(self) -> Array | None:
        """The value in the step before; None if that is not known."""
        return None if self.change is None else self.value - self.change

    def advance(self, gradient: Array, norm: float = 0.0) -> None:
        """Take the gradient of the step that comes, and the norm of all gradients of the step."""
        self.moments.advance(gradient)
        self.others.advance(gradient)
        if norm:
            self.clipped.advance(gradient / (norm + _CLIP_EPS))

    def follow(self, after: Array, gradient: Array, told: str) -> None:
        """Take the value after the step, and what it showed; "" if it followed from nothing."""
        change = after - self.value
        moved, self.lost = self.change, None
        if moved is not None and moved.any() and gradient.any() and not change.any():
            self.lost = moved, gradient
        self.change = change
        self.value, self.gradient, self.told = after, gradient, told
        if RESET in told:
            self.moments, self.others = _Moments(), _OtherStates()
            self.moments.advance(gradient)
            self.others.advance(gradient)

    def expectations(
        self, gradient: Array, after: Array, known: Sequence[KnownRates] = ()
    ) -> Iterator[Expectation]:
        """Yield what the parameter may be after the step; `advance` comes first.

        Args:
            gradient: that of the step.
            after: the parameter after it.
            known: the rates of other parameters; by default, this one tells its own.
        """
        new = wide(after)
        change = new - self.value
        stored = unit_roundoff(after.dtype)
        some = np.s_[:: max(1, change.size // _SAMPLE)]
        self.fits.clear()
        for model, fit in self._fits(gradient, change, stored, known) if self.value.size >= LEAST else ():
            value, error = self._made(model, fit, stored, some)
            if np.mean(np.abs(new.reshape(-1)[some] - value) <= 2 * error) * 2 < 1:
                continue
            value, error = self._made(model, fit, stored, np.s_[:])
            if np.median(model.shown(fit.coefficients)) <= np.median(error):
                continue
            is_lost = model.lost is not None or (self.lost is not None and model.family.startswith("Adam"))
            rate = model.rate(fit.coefficients)
            decay = "" if model.decay is None else f", decay = {-fit.coefficients[model.decay] / rate:.3g}"
            told = f"{model.family}, lr = {rate:.4g}{decay}{LOST if is_lost else ''}"
            self.fits[told] = fit
            yield Expectation(value.reshape(after.shape), error.reshape(after.shape), told)

    def _fits(
        self, gradient: Array, change: Array, stored: float, known: Sequence[KnownRates]
    ) -> Iterator[tuple[_Model, KnownRates]]:
        for model in self._models(gradient, change):
            # With another optimizer, the last rate was found otherwise.
            last_rate = rate_of(self.told) if family_of(self.told) == model.family else np.nan
            own = None if known else self._fitted(model, change, stored)
            if own is not None and model.is_admissible(own.coefficients, last_rate):
                yield model, own
            for fit in known:
                if fit.family == model.family and len(fit.coefficients) == len(model.terms):
                    yield model, fit

    def _fitted(self, model: _Model, change: Array, stored: float) -> KnownRates | None:
        """Fit a model to a change, as far as rounding lets its coefficients be known.

        Few elements show first whether it fits at all.
        """
        if change.size > _FEWER * _TRIED:
            some = np.s_[:: change.size // _TRIED]
            fit = self._fitted_to(model, change, stored, some)
            if fit is None:
                return None
            made, error = self._made(model, fit, stored, some)
            off = np.abs((self.value + change).reshape(-1)[some] - made)
            if np.mean(off <= 2 * error) * _FEWER < 1:
                return None
        return self._fitted_to(model, change, stored, np.s_[:: max(1, change.size // _FITTED)])

    def _fitted_to(self, model: _Model, change: Array, stored: float, some: slice) -> KnownRates | None:
        terms = [term.reshape(-1)[some] for term in model.terms]
        found = _least_squares(np.stack(terms, 1), change.reshape(-1)[some])
        if found is None:
            return None
        coefficients, inverse, residue, kept = found
        made = _parts(coefficients, terms)
        rounding = self._rounding(model, coefficients, made, stored, some)[kept]
        spread = [
            np.sqrt(np.mean(each[np.isfinite(each)] ** 2)) for each in (residue[kept], _NEAR * rounding)
        ]
        # What rounding does not explain does not excuse a model that does not fit.
        covariance = inverse * (LAMBDA * np.nanmin(spread)) ** 2
        doubt = model.doubt_of_rate(coefficients, covariance)
        return KnownRates(model.family, coefficients, covariance, doubt)

    def _rounding(
        self, model: _Model, coefficients: Array, made: Sequence[Array], stored: float, chosen: slice
    ) -> Array:
        """Return how far rounding may take elements of the flat parameter from what a model makes."""
        before, sizes = (np.broadcast_to(each, self.value.shape) for each in (self.value, model.sizes))
        size = -coefficients[0] * sizes.reshape(-1)[chosen] + np.sum(np.abs(made), axis=0)
        carries = model.momentum is not None or model.family.startswith("SGD")
        carried = 2 + 2 * np.abs(coefficients[1:]).max(initial=0.0) * carries
        return np.asarray(FEW * _WORKING * size + stored * carried * np.abs(before.reshape(-1)[chosen]))

    def _made(self, model: _Model, fit: KnownRates, stored: float, chosen: slice) -> tuple[Array, Array]:
        """Return what an optimizer makes of elements of the flat parameter, and how far off it may be."""
        before, *terms = (each.reshape(-1)[chosen] for each in (self.value, *model.terms))
        made = _parts(fit.coefficients, terms)
        error = self._rounding(model, fit.coefficients, made, stored, chosen) + fit.doubt(terms)
        return before + np.sum(made, axis=0), error

    def _models(self, gradient: Array, change: Array) -> Iterator[_Model]:
        """Yield what optimizers make of a gradient, the one that the parameter was said to have first."""
        value, moments, clipped = self.value, self.moments, self.clipped
        is_adam, others = self.family.startswith("Adam,"), ("NAdam", "RMSprop", "Lion", "Adafactor", "Muon")
        eps_of_clipped = (0.0, None) if clipped.count else ()
        kinds: tuple[tuple[bool, Iterator[_Model]], ...] = (
            (is_adam, moments.models(value, change, _ADAM_EPS)),
            (self.family.startswith("SGD"), self._sgd(gradient, change)),
            (is_adam, moments.models(value, change)),  # with a large eps, Adam is SGD with momentum
            (
                CLIPPED in self.told,
                chain.from_iterable(clipped.models(value, change, eps, CLIPPED) for eps in eps_of_clipped),
            ),
            (is_adam, self._reset(gradient, change)),
            (
                self.family.startswith(others),
                chain(
                    moments.nadam(value, gradient) if moments.count > 1 else (),
                    self.others.models(value, gradient, change, self.change),
                ),
            ),
        )
        for _, models in sorted(kinds, key=lambda kind: not kind[0]):
            yield from models

    def _sgd(self, gradient: Array, change: Array) -> Iterator[_Model]:
        size, value = np.abs(gradient), self.value
        reset = ""
        if self.change is not None and self.told.startswith(MOMENTUM):
            carried, shown = (float(np.median(np.abs(each))) for each in (self.change, change))
            reset = RESET if carried > _VISIBLE * shown else ""  # what momentum carries on would be seen
        yield from _decayed("SGD" + reset, [gradient], value, size)
        if self.change is not None and self.gradient is not None:
            missing = rate_of(self.told) * size if self.told.startswith(MOMENTUM) else 0.0
            for terms in ([-self.change], [-self.change, value]):
                yield _Model(MOMENTUM + WITHOUT_GRADIENT, terms, np.zeros(()), missing=missing)
            yield from _decayed(MOMENTUM, [gradient, self.change], value, size, momentum=1)
            terms = [gradient, self.change, self.gradient]
            yield from _decayed(f"{MOMENTUM}, Nesterov", terms, value, size, momentum=1, ahead=2)
        if self.lost is not None:
            before, unseen = self.lost
            yield from _decayed(MOMENTUM, [gradient, before, unseen], value, size, lost=2)

    def _reset(self, gradient: Array, change: Array) -> Iterator[_Model]:
        """Yield what the last optimizer makes of a gradient alone: that of most is as with Adam."""
        family = family_of(self.told) if self.moments.count > 2 and RESET not in self.told else ""
        if family.startswith(("Adam,", "NAdam", "RMSprop", "Lion")):
            fresh = _Moments()
            fresh.advance(gradient)
            models = fresh.models(self.value, change, _ADAM_EPS, RESET)
            yield from (model._replace(family=f"{family}{RESET}") for model in models)
        elif family.startswith("Adafactor"):
            states = _OtherStates()
            states.advance(gradient)
            yield from states.adafactor(self.value, gradient, RESET)


@dataclass(frozen=True, slots=True)
class KnownRates:
    """The coefficients of the terms of an optimizer, and the covariance of their uncertainty."""

    family: str
    coefficients: Array
    covariance: Array
    doubt_of_rate: float
    """The standard deviation of the learning rate, relative to it."""

    def doubt(self, terms: Sequence[Array]) -> Array:
        """Return what the uncertainty makes of each element."""
        squares = sum(
            self.covariance[i, j] * one * other
            for i, one in enumerate(terms)
            for j, other in enumerate(terms)
        )
        return np.asarray(np.sqrt(np.maximum(squares, 0)))


def _parts(coefficients: Array, terms: Sequence[Array]) -> list[Array]:
    return [coefficient * term for coefficient, term in zip(coefficients, terms, strict=True)]


def _least_squares(matrix: Array, target: Array) -> tuple[Array, Array, Array, Array] | None:
    """Fit columns to a target, without the elements that they explain least; None if that is not possible.

    Returns:
        The coefficients, the inverse of the products of the columns, what remains, and which elements count.
    """
    norms = np.sqrt(np.einsum("ij,ij->j", matrix, matrix))
    if not (norms.all() and np.isfinite(norms).all() and np.isfinite(target).all() and target.any()):
        return None
    kept = tells = matrix[:, 0] != 0
    last = int(np.count_nonzero(tells)) - 1
    half, most = last // 2, int(last * (1 - LEFT_OUT))
    # Nearly all rows of an orthonormal basis are nearly orthonormal: fits of those are well conditioned.
    basis, sizes, turned = np.linalg.svd(matrix / norms, full_matrices=False)
    told = sizes > _SINGULAR * len(matrix) * sizes[0]
    basis, back = basis[:, told], (turned[told].T / sizes[told]) / norms[:, None]
    for _ in range(_REFITS):
        chosen, sought = (basis, target) if kept.all() else (basis[kept], target[kept])
        values, vectors = np.linalg.eigh(chosen.T @ chosen)
        inverse = vectors / np.where(values > _SINGULAR, values, np.inf) @ vectors.T
        fit = inverse @ (chosen.T @ sought)
        residue = np.abs(basis @ fit - target)
        ordered = np.partition(residue[tells], (half, most))
        limit = min(ordered[most], _ODD * ordered[half])
        before, kept = kept, tells & (residue <= limit)
        if np.array_equal(before, kept):
            break
    return back @ fit, back @ inverse @ back.T, residue, kept


def recorded_update(
    name: str, before: Sequence[Array], now: Sequence[Array], slot: int
) -> Iterator[Expectation]:
    """Yield what an operator of MindSpore or CANN made of a parameter or state, with all that it read.

    Args:
        name: the operator, by `plain_name`.
        before: the inputs of its call in the step before, after that call had written to them.
        now: its inputs in this step, after it had written to them.
        slot: the input that is asked for.
    """
    value = wide(before[slot]) if slot < len(before) else np.zeros(())
    if name in ("applymomentum", "momentum") and len(now) >= 5 and slot < 2:
        accumulated, rate, gradient, momentum = map(wide, now[1:5])
        kept, added = (value * momentum, gradient) if slot else (value, -rate * accumulated)
        yield Expectation(kept + added, 4 * _WORKING * (np.abs(kept) + np.abs(added)))
    elif name in ("adam", "applyadam") and len(now) >= 10:
        yield from _recorded_adam(value, now, slot)


def _recorded_adam(value: Array, now: Sequence[Array], slot: int) -> Iterator[Expectation]:
    first, second, power1, power2, rate, beta1, beta2, eps, gradient = map(wide, now[1:10])
    if slot in (1, 2):
        beta, new = (beta1, gradient) if slot == 1 else (beta2, gradient**2)
        size = np.abs(beta * value) + np.abs((1 - beta) * new) * (1 + 1 / np.abs(1 - beta)) + np.abs(value)
        yield Expectation(beta * value + (1 - beta) * new, 4 * _WORKING * size)
    elif slot == 0:
        step = rate * np.sqrt(1 - power2) / (1 - power1) * first / (np.sqrt(second) + eps)
        slack = FEW + 1 / np.abs(1 - power1) + 1 / np.abs(1 - power2)
        yield Expectation(value - step, _WORKING * (slack * np.abs(step) + 2 * np.abs(value)))
