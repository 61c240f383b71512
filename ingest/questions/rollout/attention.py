"""Attention recomputed from its queries, keys and values, in the form that the values show.

What a dump lacks is found from it: how rows are cut into heads, by which angles they are turned, which keys a
query sees, and by which factor scores are scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain, product
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from ingest.identities.definition import Array, wide
from ingest.identities.limits import FUNCTION, LAMBDA, limit_of, sum_error, unit_roundoff
from ingest.questions.rollout.fibres import rounded

#: Queries, keys and values of the same tokens, (token, element).
Three: TypeAlias = tuple[Array, Array, Array]
#: Bases of rotary embeddings that models use; others are found only if the angles were recorded.
_BASES = (1e4, 5e5, 1e6, 1e5, 2e5, 1.5e5, 8e6, 1e7, 2.5e5, 5e6, 1e3, 2e4)
_SAME = 1e-3
#: How far recorded angles may be from even steps: bfloat16 has cosines to 0.004, and angles to twice that.
_UNEVEN = 0.1
_FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
#: Soft caps of scores that models use.
_CAPS = (50.0, 30.0, 20.0)
_SIZES = (256, 192, 160, 128, 112, 96, 80, 64, 48, 40, 32, 24, 16, 12, 8)
#: Rows by which a form is chosen; the others are checked by it.
_FIRST = 4
#: Forms that explain the first rows best.
_BEST = 2
#: Rows by which it is judged which of two forms is nearer.
_COMPARED = 128
#: As many keys behind its own as a query may see.
EVERY = 1 << 30
#: Scores that are computed at once.
_SCORES = 1 << 23


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """What rows should be, (token, element), in float64."""

    value: Array
    error: Array | float
    """How far they may be off before they are rounded to their type."""
    told: str = ""
    """The attributes that it assumes."""

    def at(self, rows: Array) -> Recomputed:
        """Return some of the rows."""
        return Recomputed(self.value[rows], np.broadcast_to(self.error, self.value.shape)[rows], self.told)

    def times(self, out: Array) -> float:
        """Return how far rows are from it, in units of the limit."""
        return float(self.beyond(out).max(initial=0.0))

    def beyond(self, out: Array) -> Array:
        """Return by element how far rows are from it, in units of the limit."""
        with np.errstate(all="ignore"):
            off = np.abs(wide(out) - self.value)
            times = np.where(off > 0, off / limit_of(self.value, self.error, out.dtype), 0.0)
            times[~np.isfinite(self.value) & ~np.isfinite(wide(out))] = 0
            return np.where(np.isnan(times), np.inf, times)


@dataclass(frozen=True, slots=True)
class Turning:
    """The angles by which pairs of elements are turned, by position."""

    pairs: int
    base: float = 0.0
    factor: float = 1.0
    is_interleaved: bool = False
    recorded: tuple[Array, Array] | None = field(default=None, compare=False)
    """Cosines and sines as they were recorded, (position, pair)."""

    @property
    def text(self) -> str:
        """Name it."""
        if not self.base:
            return "rotation by recorded angles"
        scaled = f", positions divided by {self.factor:.4g}" if abs(self.factor - 1) > _SAME else ""
        return f"rotation with base {self.base:.6g}{scaled}" + ", neighbours paired" * self.is_interleaved

    def angles(self, count: int, unit: float) -> Three:
        """Return cosines, sines and their error for the first positions."""
        if self.recorded is not None and len(self.recorded[0]) >= count:
            cos, sin = (each[:count] for each in self.recorded)
            return cos, sin, np.full(cos.shape, unit)
        return _angles(self.pairs, self.base or 1.0, self.factor, count, unit)

    def turned(self, x: Array, unit: float, positions: Array | None) -> tuple[Array, Array]:
        """Return rows of heads (token, head, element) turned, and their error."""
        at = np.arange(len(x)) if positions is None else positions
        angles = replace(self, recorded=None if positions is not None and self.base else self.recorded)
        cos, sin, off = (each[at][:, None] for each in angles.angles(int(at.max(initial=0)) + 1, unit))
        end = 2 * self.pairs
        one, two = (
            (slice(0, end, 2), slice(1, end, 2))
            if self.is_interleaved
            else (slice(0, self.pairs), slice(self.pairs, end))
        )
        first, second = x[..., one], x[..., two]
        out, error = x.copy(), np.zeros_like(x)
        out[..., one], out[..., two] = first * cos - second * sin, second * cos + first * sin
        error[..., one] = error[..., two] = (off + 3 * unit) * (np.abs(first) + np.abs(second))
        return out, error


@lru_cache(maxsize=512)
def _angles(pairs: int, base: float, factor: float, count: int, unit: float) -> Three:
    angles = np.arange(count)[:, None] * (base ** -(np.arange(pairs) / pairs) / factor)
    # Programs compute angles in float32.
    return np.cos(angles), np.sin(angles), unit + 2.0**-22 * np.abs(angles)


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How queries, keys and values become an output."""

    size: int
    """Elements of a head."""
    turning: Turning | None = None
    window: int = 0
    """How many keys a query sees, its own included; 0: all before it."""
    ahead: int = 0
    """How many keys behind its own it sees; -1: its own is hidden."""
    scale: float = 0.0
    """Of scores; 0: by the root of the size of a head."""
    cap: float = 0.0
    """Beyond which scores do not grow: the multiple of a hyperbolic tangent; 0: they do."""
    cached: str = ""
    """The type to which keys and values are rounded in the cache; "": their own."""
    in_turn: bool = False
    """Whether query heads have the key heads in turn, and not in groups."""

    @property
    def told(self) -> Mapping[str, str]:
        """What it does, in a few words, by field."""
        turned = 2 * self.turning.pairs if self.turning else self.size
        part = f" of {turned} of {self.size} elements" * (turned < self.size)
        mask = "no causal mask" if self.ahead == EVERY else f"a mask that is off by {self.ahead:+d}"
        return {
            "turning": self.turning.text + part if self.turning else "no rotation",
            "window": f"a window of {self.window}" if self.window else "no window",
            "ahead": mask if self.ahead else "a causal mask",
            "scale": f"scores times {self.scale:.6g}" if self.scale else "scores by the root of a head",
            "cap": f"scores capped at {self.cap:g}" if self.cap else "no cap of scores",
            "cached": f"keys and values rounded to {self.cached}" if self.cached else "their own type",
            "in_turn": "key heads in turn" if self.in_turn else "key heads in groups",
        }

    @property
    def text(self) -> str:
        """Say what is not as usual."""
        told, usual = self.told, AttentionForm(self.size).told
        return ", ".join(text for name, text in told.items() if name == "turning" or text != usual[name])

    def against(self, other: AttentionForm) -> str:
        """Say in what it differs from another form."""
        odd = [
            each.name for each in fields(self)[1:] if getattr(self, each.name) != getattr(other, each.name)
        ]
        usual = AttentionForm(self.size).told
        own = ", ".join(self.told[name] for name in odd)
        theirs = ", ".join(other.told[name] for name in odd if other.told[name] != usual[name])
        return f"{own}, and not {theirs}" if theirs else own

    def applied(
        self, parts: Three | None, positions: Array | None = None, rows: Array | slice = slice(None)
    ) -> Recomputed | None:
        """Return the output for queries, keys and values, (token, element); None if they do not fit.

        Args:
            parts: queries, keys and values of the same tokens.
            positions: those by which rows are turned; None: from 0 on.
            rows: the queries whose output is returned.
        """
        if parts is None or any(part.shape[1] % self.size or not part.size for part in parts[:2]):
            return None
        heads, shared = (part.shape[1] // self.size for part in parts[:2])
        if heads % shared or parts[2].shape[1] % shared:
            return None
        unit = unit_roundoff(parts[0].dtype)
        by_head = self._by_head(parts, unit, positions)
        at = np.arange(len(parts[0]))
        own = at[rows, None]
        seen = at[None, :] <= own + self.ahead
        if self.window:
            seen &= at[None, :] > own - self.window
        by_head[0], by_head[3] = by_head[0][:, rows], by_head[3][:, rows]
        block = max(_SCORES // max(seen.size, 1), 1)
        made = [
            self._of_heads([each[first : first + block] for each in by_head], seen, unit)
            for first in range(0, heads, block)
        ]
        value, error = (np.concatenate(each).swapaxes(0, 1) for each in zip(*made, strict=True))
        return Recomputed(value.reshape(len(own), -1), error.reshape(len(own), -1), self.text)

    def _by_head(self, parts: Three, unit: float, positions: Array | None) -> list[Array]:
        """Return queries, keys, values, and errors of both first, (head, token, element)."""
        q, k, v = parts
        heads, shared = q.shape[1] // self.size, k.shape[1] // self.size
        queries, keys = (
            wide(each).reshape(len(each), count, self.size) for each, count in ((q, heads), (k, shared))
        )
        errors = np.zeros_like(queries), np.zeros_like(keys)
        if self.turning:
            (queries, errors0), (keys, errors1) = (
                self.turning.turned(each, unit, positions) for each in (queries, keys)
            )
            errors = errors0, errors1
        values = wide(v).reshape(len(v), shared, -1)
        if self.cached:
            keys, values = (wide(rounded(each.astype(q.dtype), self.cached)) for each in (keys, values))
        chosen = np.arange(heads) % shared if self.in_turn else np.arange(heads) // (heads // shared)
        keys, values, of_keys = (each[:, chosen] for each in (keys, values, errors[1]))
        return [each.swapaxes(0, 1) for each in (queries, keys, values, errors[0], of_keys)]

    def shown_scale(self, parts: Three, out: Array) -> float:
        """Return the scale of scores that the second row shows, which sees two keys; 0 if it shows none."""
        first = parts[0][:2], parts[1][:2], parts[2][:2]
        q, k, v, *_ = self._by_head(first, unit_roundoff(out.dtype), None)
        got = wide(out[1]).reshape(len(q), -1) - v[:, 0]
        apart = v[:, 1] - v[:, 0]
        with np.errstate(all="ignore"):
            share = (got * apart).sum(1) / (apart**2).sum(1)
            scores = np.log(share / (1 - share)) / (q[:, 1] * (k[:, 1] - k[:, 0])).sum(1)
        known = scores[np.isfinite(scores) & (scores > 0)]
        return float(np.median(known)) if len(known) else 0.0

    def _of_heads(self, by_head: Sequence[Array], seen: Array, unit: float) -> tuple[Array, Array]:
        q, k, v, q_off, k_off = by_head
        work = min(unit, 2.0**-24)
        scale = self.scale or 1 / math.sqrt(self.size)
        scores = q @ k.swapaxes(1, 2) * scale
        sizes = np.abs(q) @ np.abs(k).swapaxes(1, 2) * abs(scale)
        doubt = abs(scale) * (q_off @ np.abs(k).swapaxes(1, 2) + np.abs(q) @ k_off.swapaxes(1, 2))
        doubt += sum_error(self.size, work) * sizes + 2 * unit * np.abs(scores)
        if self.cap:
            doubt += FUNCTION * work * np.abs(scores)
            scores = self.cap * np.tanh(scores / self.cap)
        scores = np.where(seen, scores, -np.inf)
        with np.errstate(invalid="ignore"):  # a row that sees nothing
            powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
        off = np.expm1(2 * np.where(seen, doubt, 0).max(-1, keepdims=True))
        off = off + sum_error(k.shape[1], work) + FUNCTION * work + 2 * unit
        return weights @ v, off * (weights @ np.abs(v))


def turning_of(cos: Array, sin: Array) -> Turning | None:
    """Return the rotation by recorded cosines and sines, (position, element); None if they are none."""
    if cos.shape != sin.shape or cos.shape[1] < 4 or cos.shape[1] % 2 or not len(cos):
        return None
    c, s = wide(cos), wide(sin)
    squares = c * c + s * s
    if np.ptp(squares) > 16 * unit_roundoff(cos.dtype) * squares.max():
        return None
    pairs = cos.shape[1] // 2
    is_interleaved = bool((c[:, 0::2] == c[:, 1::2]).all() and not (c[:, :pairs] == c[:, pairs:]).all())
    cut = slice(0, None, 2) if is_interleaved else slice(0, pairs)
    c, s = c[:, cut], s[:, cut]
    base, factor = _base_of(c, s) if abs(squares.max() - 1) < _SAME else (0.0, 1.0)
    return Turning(pairs, base, factor, is_interleaved, (c, s))


def _base_of(cos: Array, sin: Array) -> tuple[float, float]:
    """Return the base from which the angles of all pairs follow, and what divides positions; 0 if none is."""
    angles = np.unwrap(np.arctan2(sin, cos), axis=0)
    rates = (angles[-1] - angles[0]) / max(len(cos) - 1, 1)
    if np.abs(angles - angles[0] - rates * np.arange(len(angles))[:, None]).max() > _UNEVEN:
        return 0.0, 1.0  # positions do not count up
    known = rates > 2.0**-12
    if known.sum() < 2:
        return 0.0, 1.0
    exponents = np.arange(len(rates))[known] / len(rates)
    slope, level = np.polyfit(exponents, np.log(rates[known]), 1)
    is_one = np.abs(np.log(rates[known]) - level - slope * exponents).max() < _SAME
    return (float(np.exp(-slope)), float(np.exp(-level))) if is_one else (0.0, 1.0)


def form_of(
    out: Array, parts: Three, forms: Sequence[AttentionForm], turnings: Sequence[Turning]
) -> AttentionForm | None:
    """Return the form in which rows are the attention of queries, keys and values; None if in none.

    Args:
        out: what attention returned, (token, element).
        parts: queries, keys and values of the same tokens.
        forms: those that it may have; none: any.
        turnings: rotations that were recorded, which are tried first of any.
    """
    q, k, v = parts
    few = slice(0, _FIRST)
    first, start = ((q[rows], k[rows], v[rows]) for rows in (few, slice(0, 1)))
    # The first row sees its own value alone, whatever else the form is.
    sizes = [size for size in _SIZES if _explains(AttentionForm(size), start, out[:1])]
    fitting = (form for form in forms or _forms(sizes, turnings) if form.size in sizes)
    made = ((form, form.applied(first)) for form in fitting)
    errors = [(form, np.linalg.norm(wide(out[few]) - of.value)) for form, of in made if of is not None]
    best = [form for form, _ in sorted(errors, key=itemgetter(1))[:_BEST]]
    same = (form for form in best if _explains(form, parts, out))
    others = (each for form in best for each in other_forms(form, parts, out))
    return next(same if forms else chain(same, others), None)


def other_forms(
    form: AttentionForm, parts: Three | None, out: Array, turnings: Sequence[Turning] = ()
) -> Iterator[AttentionForm]:
    """Yield forms that explain rows and differ from one that does not: in one thing, or also in its mask.

    `turnings` are rotations that were recorded.
    """
    made = form.applied(parts)
    if parts is None or made is None or len(out) < 2:
        return
    few = slice(0, _FIRST)
    first = parts[0][few], parts[1][few], parts[2][few]
    for variant in _masks(form, made, out):
        if (variant.ahead > 0 or _explains(variant, first, out[few])) and _explains(variant, parts, out):
            yield variant
    for variant in _variants(form, parts, out, turnings):
        if _explains(variant, first, out[few]):
            yield from _masked_too(variant, parts, out)


def _masked_too(form: AttentionForm, parts: Three, out: Array) -> Iterator[AttentionForm]:
    made = form.applied(parts)
    if made is not None and made.times(out) <= 1:
        yield form
    elif made is not None:
        yield from (each for each in _masks(form, made, out) if _explains(each, parts, out))


def likelier_form(form: AttentionForm, sides: Sequence[tuple[Three, Array]]) -> AttentionForm | None:
    """Return another rotation or scale that one side shows, and the other one does not; None if none does.

    Limits of narrow types are wide. But errors of rounding have either sign: if another form is nearer to
    the rows of the first side than the given one by more than chance, and farther from those of the second
    (Q. H. Vuong, "Likelihood ratio tests for model selection", 1989), the first side has another form.

    Args:
        form: what explains both sides within the limits.
        sides: queries, keys and values, and the output, of the side in doubt and of the other one.
    """
    before = [_misfit(form, *each) for each in sides]
    best, likeliest = LAMBDA, None
    for other in _turned_otherwise(form):
        gains = [old - _misfit(other, *each) for old, each in zip(before, sides, strict=True)]
        here, there = (float(gain.sum() / max(np.sqrt((gain**2).sum()), 1e-300)) for gain in gains)
        if here > best and there < -LAMBDA:
            best, likeliest = here, other
    return likeliest


def _misfit(form: AttentionForm, parts: Three, out: Array) -> Array:
    """Return by row and head the sum of the squares of what a form leaves."""
    q, k, v = (each[:_COMPARED] for each in parts)
    made = form.applied((q, k, v))
    off = np.zeros((0, 1)) if made is None else wide(out[:_COMPARED]) - made.value
    return np.asarray((off.reshape(len(off), q.shape[1] // form.size, -1) ** 2).sum(axis=2).reshape(-1))


def _explains(form: AttentionForm, parts: Three, out: Array) -> bool:
    made = form.applied(parts)
    return made is not None and made.times(out) <= 1


def _forms(sizes: Sequence[int], turnings: Sequence[Turning]) -> Iterator[AttentionForm]:
    for each in turnings:
        for size in sorted(sizes, key=lambda size: size != 2 * each.pairs):
            if size >= 2 * each.pairs:
                yield AttentionForm(size, each)
    for size in sizes:
        yield AttentionForm(size)
        for base in _BASES:
            for is_interleaved in (False, True):
                yield AttentionForm(size, Turning(size // 2, base, is_interleaved=is_interleaved))


def _masks(form: AttentionForm, made: Recomputed, out: Array) -> Iterator[AttentionForm]:
    first_wrong = int(np.argmax(made.beyond(out).max(axis=1) > 1))
    for window in range(max(first_wrong - 1, 1), min(first_wrong + 2, len(out))):
        yield replace(form, window=window)
    yield replace(form, window=0)
    for ahead in (1, -1, EVERY):
        yield replace(form, ahead=ahead)


def _variants(
    form: AttentionForm, parts: Three, out: Array, turnings: Sequence[Turning]
) -> Iterator[AttentionForm]:
    for cached in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"):
        yield replace(form, cached=cached)
    for cap in (0.0, *_CAPS):
        yield replace(form, cap=cap)
    yield replace(form, in_turn=not form.in_turn)
    yield replace(form, turning=None)
    yield from (replace(form, turning=each) for each in turnings if 2 * each.pairs <= form.size)
    yield replace(form, scale=form.shown_scale(parts, out))
    yield from _turned_otherwise(form)


def _turned_otherwise(form: AttentionForm) -> Iterator[AttentionForm]:
    for scale in (1.0, 1.0 / form.size):
        yield replace(form, scale=scale)
    for base, factor, is_interleaved in product(_BASES, _FACTORS, (False, True)):
        yield replace(form, turning=Turning(form.size // 2, base, factor, is_interleaved))
