"""What rows of a side follow from, by its own values: recomputed in float64, within what rounding allows.

Between modules, programs add, multiply and attend without telling. What they did is found from the values: a
stream is the same as an earlier one, a sum, a gated product, or the attention of three. The rule that one
side shows is applied to the values of the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, permutations, product
from typing import TypeAlias

import numpy as np

from ingest.identities.definition import Array, CallOperands, wide
from ingest.identities.elementwise import sigmoid
from ingest.identities.limits import FEW, FUNCTION, sum_error, unit_of, unit_roundoff, working_roundoff
from ingest.identities.operators import DEFINITIONS, softmax
from ingest.questions.rollout.attention import AttentionForm, Recomputed, Turning, form_of, turning_of
from ingest.questions.rollout.fibres import rounded
from ingest.questions.rollout.sequences import Lane, Stream, TokenSequence
from ingest.reader.operator_kinds import is_output
from workers.arrays.digest import digest

#: Earlier streams among which it is looked for what a stream consists of, and rows that are tried first.
_EARLIER, _TRIED = 12, 6
#: Streams of a sequence that are kept in memory.
_KEPT = 64
#: Rows of a sequence at which attention is recomputed: its scores are their square.
MOST_ROWS = 2048
#: Some of the rows of a sequence, or all.
Rows: TypeAlias = Array | slice
EVERY_ROW = slice(None)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What a stream follows from, by a rule that can be applied to the same streams of another side."""

    kind: str
    sources: tuple[Stream, ...]
    factors: tuple[float, ...] = ()
    """Of a sum; none: 1 each."""
    act: str = ""
    swapped: bool = False
    """Whether the second half of one source is the gate."""
    form: AttentionForm | None = None
    via: str = ""
    """The type to which sources and what is made of them are rounded; "": their own."""

    @property
    def text(self) -> str:
        """Say it in a few words."""
        if self.kind == "routing":
            return f"top {self.factors[0]:.0f} of {self.act} of {self.sources[0].module}"
        names = " + ".join(
            each.module if factor == 1 else f"{factor:.6g} times {each.module}"
            for each, factor in zip(self.sources, self.factors or [1.0] * len(self.sources), strict=True)
        )
        kind = "" if self.kind in ("sum", "copy", "function") else f"{self.kind} of "
        via = f", in {self.via}" if self.via else ""
        return " ".join(filter(None, (self.act, kind + names))) + via

    def applied(self, parts: Sequence[Array], out: Array, rows: Rows = EVERY_ROW) -> Recomputed | None:
        """Return what the rule makes of sources, in some of the rows; None if they do not fit."""
        if self.form is not None:
            return self.form.applied(cut(parts, out.shape[1]), rows=rows)
        parts, out = [each[rows] for each in parts], out[rows]
        if any(each.shape != parts[0].shape for each in parts):
            return None
        if not self.via:
            return self._made(parts, out)
        narrow = rounded(parts[0], self.via)
        if self.kind == "copy":
            return Recomputed(wide(narrow), 0.0)
        made = self._made([narrow], narrow)
        if made is None or not np.array_equal(wide(rounded(out, self.via)), wide(out)):
            return None
        return replace(made, error=made.error + unit_of(self.via) * np.abs(made.value))

    def _made(self, parts: Sequence[Array], out: Array) -> Recomputed | None:
        unit = max(unit_roundoff(out.dtype), 2.0**-24)
        match self.kind:
            case "gated product":
                return self._gated(parts, unit)
            case "function":
                return _acted(parts[0], self.act)
            case "routing":
                return _routed(parts[0], self.act, int(self.factors[0]), out.shape)
        factors = self.factors or (1.0,) * len(parts)
        terms = [wide(each) * factor for each, factor in zip(parts, factors, strict=True)]
        size = np.sum([np.abs(each) for each in terms], axis=0)
        return Recomputed(np.sum(terms, axis=0), (sum_error(len(terms), unit) + 2 * unit) * size)

    def _gated(self, parts: Sequence[Array], unit: float) -> Recomputed | None:
        halves = [*parts] if len(parts) == 2 else np.array_split(parts[0], 2, axis=1)
        gate, up = halves[::-1] if self.swapped else halves
        if gate.shape != up.shape:
            return None
        made = _acted(gate, self.act) if self.act else Recomputed(wide(gate), 0.0)
        factor = wide(up)
        error = (made.error + 3 * unit * np.abs(made.value)) * np.abs(factor)
        return Recomputed(made.value * factor, error, self.act)


#: Rules by the name of a stream without its numbers: found in one layer, they are tried first in others.
KnownRules: TypeAlias = dict[str, list[tuple[Stream, Explanation]]]


class SequenceView:
    """One sequence on one rank of one side, and what its rows follow from."""

    def __init__(
        self,
        lane: Lane,
        sequence: TokenSequence,
        forms: list[AttentionForm],
        rules: KnownRules,
    ) -> None:
        """Read nothing yet.

        Args:
            lane: what the rank recorded.
            sequence: one that it computed.
            forms: takes the forms of attention that are found, and tells those known.
            rules: takes the rules that are found, by the name of the stream without its numbers.
        """
        self.lane, self._sequence, self._forms, self._rules = lane, sequence, forms, rules
        self.places = np.array(sequence.places[:MOST_ROWS])
        self._order = {stream: number for number, stream in enumerate(lane.streams)}
        self._values: dict[Stream, Array | None] = {}
        self._explained: dict[Stream, Explanation | None] = {}
        self._tied: dict[Stream, str] = {}

    def values(self, stream: Stream) -> Array | None:
        """Return the rows of a stream, (token, element); None if not all were recorded."""
        if stream not in self._values:
            if len(self._values) >= _KEPT:
                self._values.pop(next(iter(self._values)))
            self._values[stream] = self.lane.values(stream, self.places)
        return self._values[stream]

    @cached_property
    def roots(self) -> dict[Stream, Stream]:
        """By stream the first one with the same values, up to the type."""
        first: dict[bytes, Stream] = {}
        roots: dict[Stream, Stream] = {}
        for stream in self.lane.streams:
            values = self.values(stream)
            if values is None or values.dtype.kind in "biu":
                continue
            with np.errstate(all="ignore"):
                content = digest(values.astype(np.float32).view(np.uint8).data) + str(values.shape).encode()
            roots[stream] = first.setdefault(content, stream)
        return roots

    @cached_property
    def turnings(self) -> list[Turning]:
        """The rotations whose cosines and sines were recorded."""
        found: dict[bytes, Turning] = {}
        for stream in (each for each in self.lane.streams if each.slot == 0 and is_output(each.io)):
            cos, sin = self.values(stream), self.values(stream._replace(slot=1))
            if cos is None or sin is None or cos.dtype.kind in "biu":
                continue
            if (turning := turning_of(cos, sin)) is not None:
                found.setdefault(cos.tobytes(), turning)
        return [*found.values()]

    @property
    def positions(self) -> Array | None:
        """The positions of its tokens, as they were recorded; None if they were not."""
        stream = self.lane.positions
        values = None if stream is None else self.values(stream)
        return None if values is None or values.shape[1] != 1 else values[:, 0].astype(np.int64)

    def around(self) -> tuple[SequenceView, Array] | None:
        """Return all rows of its batch, and which are its own; None if it was computed in several calls."""
        batch = self.lane.batch_of(self.places)
        if batch is None or len(batch) > MOST_ROWS:
            return None
        whole = TokenSequence(self._sequence.number, self._sequence.prefixes, batch.tolist())
        return SequenceView(self.lane, whole, self._forms, self._rules), self.places - batch[0]

    def inputs(self, stream: Stream) -> list[Stream]:
        """Return what the call read that wrote a stream."""
        return self.lane.inputs.get((stream.op_type, stream.module, stream.turn), [])

    def read_by(self, stream: Stream) -> list[Stream]:
        """Return the floating-point inputs of one shape of the call that wrote a stream.

        Of a module without weights, that is the stream itself: what is between other modules. So are results
        besides the first, which follow from it.
        """
        if not self.is_weighted(stream):
            return [stream]
        floats = [each for each in self.inputs(stream) if each in self.roots]
        return [each for each in floats if self.lane.width(each) == self.lane.width(floats[0])]

    def read(self, stream: Stream) -> Array | None:
        """Return what the call read that wrote a stream: the sum, if it is several of one shape."""
        parts = [self._known(each) for each in self.read_by(stream)]
        if len(parts) < 2:
            return next(iter(parts), None)
        return np.asarray(np.sum([wide(each) for each in parts], axis=0).astype(parts[0].dtype))

    def earlier(self, stream: Stream, width: int | None = None) -> list[Stream]:
        """Return different streams before one, the nearest first."""
        found = {
            self.roots[each]
            for each in self.lane.streams[: self._order[stream]]
            if each in self.roots and self.lane.width(each) == (width or self.lane.width(each))
        }
        return sorted(found - {self.roots.get(stream)}, key=self._order.__getitem__, reverse=True)

    def explained(self, stream: Stream) -> Explanation | None:
        """Return what a stream follows from besides the weights of a module."""
        if stream not in self._explained:
            self._explained[stream] = self._explain(stream)
        return self._explained[stream]

    def _explain(self, stream: Stream) -> Explanation | None:
        out = self.values(stream)
        if out is None or out.dtype.kind in "biu":
            return None
        if (root := self.roots[stream]) != stream:
            return Explanation("copy", (root,))
        known = self._rules.setdefault(_NUMBER.sub("", stream.name), [])
        if (found := self._first(self._moved(known, stream), out)) is not None:
            return found
        searches = (
            self._routing,
            self._sum,
            self._gated,
            self._scaled,
            self._weighted,
            self._finished,
            self._attention,
        )
        tried = (search(stream, out) for search in searches)
        if (found := next((each for each in tried if each is not None), None)) is not None:
            known.append((stream, found))
        return found

    def _moved(self, known: Sequence[tuple[Stream, Explanation]], stream: Stream) -> Iterator[Explanation]:
        """Yield rules of the same module in another layer, with the streams that lie as far before."""
        for other, rule in known:
            distance = self._order[stream] - self._order[other]
            moved = [self._order[each] + distance for each in rule.sources]
            near = [self.lane.streams[each] for each in moved if 0 <= each < self._order[stream]]
            if len(near) == len(moved) and all(each in self.roots for each in near):
                yield replace(rule, sources=tuple(self.roots[each] for each in near))

    def leaves(self, stream: Stream, stops: Container[Stream]) -> dict[Stream, float]:
        """Return the streams of which a stream is the sum, with their factors.

        Args:
            stream: one of the lane, of floating-point numbers.
            stops: those that are not taken apart.
        """
        root = self.roots[stream]
        found = None if root in stops else self.explained(root)
        if found is None or found.kind != "sum":
            return {root: 1.0}
        total: dict[Stream, float] = {}
        for source, share in zip(found.sources, found.factors or [1.0] * len(found.sources), strict=True):
            for leaf, factor in self.leaves(source, stops).items():
                total[leaf] = total.get(leaf, 0.0) + share * factor
        return total

    def of_module(
        self, stream: Stream, weight: Array | None = None, rows: Rows = EVERY_ROW
    ) -> Iterator[Recomputed]:
        """Yield what the module that wrote a stream would write with its own weight, or another one."""
        whole = self.values(stream)
        read = [x for each in self.inputs(stream) if (x := self.values(each)) is not None]
        if whole is None or stream.slot:
            return
        out, inputs = whole[rows], [x[rows] for x in read]
        floats = [x for x in inputs if x.dtype.kind not in "biu"]
        experts = self._stacked(stream) if weight is None else []
        if experts:
            stacked = (self.lane.weight(each) for each in experts)
            yield from _of_experts(inputs, [each for each in stacked if each is not None], out)
        elif (weight := self.weight(stream) if weight is None else weight) is not None:
            yield from _made(inputs, floats, (weight, self.lane.weight(f"{stream.module}.bias")), out)

    def is_weighted(self, stream: Stream) -> bool:
        """Return whether a module with weights of its own wrote a stream, as its first result."""
        return not stream.slot and bool(self._weight_name(stream) or self._stacked(stream))

    def _stacked(self, stream: Stream) -> list[str]:
        """Return the matrices of all experts that the module that wrote a stream holds, in two parameters."""
        held = self.lane.stacked.get(stream.module, [])
        return held if len(held) == 2 else []

    def weight(self, stream: Stream) -> Array | None:
        """Return the weight of the module that wrote a stream, which may be that of another one."""
        return self.lane.weight(self._weight_name(stream))

    def _weight_name(self, stream: Stream) -> str:
        own = f"{stream.module}.weight"
        if own in self.lane.parameters:
            return own
        if stream not in self._tied:
            self._tied[stream] = self._tied_to(stream)
        return self._tied[stream]

    def _tied_to(self, stream: Stream) -> str:
        """Return the parameter of another module that a module without its own goes by; "" if none is."""
        out = self.values(stream)
        for source in self.inputs(stream) if "Linear" in stream.op_type else ():
            x = self.values(source)
            for name, held in self.lane.parameters.items():
                if out is not None and x is not None and held.shape == (out.shape[1], x.shape[1]):
                    few = out[:_TRIED]
                    if any(each.times(few) <= 1 for each in products(x[:_TRIED], held.read(), None, few)):
                        return name
        return ""

    def _sum(self, stream: Stream, out: Array) -> Explanation | None:
        near = self.earlier(stream, out.shape[1])[:_EARLIER]
        chosen = chain(combinations(near, 2), combinations(near[: _EARLIER // 2], 3))
        return self._first((Explanation("sum", each) for each in chosen), out)

    def _first(self, rules: Iterable[Explanation], out: Array) -> Explanation | None:
        return next((rule for rule in rules if self._holds(rule, out)), None)

    def _holds(self, rule: Explanation, out: Array) -> bool:
        parts = [self._known(each) for each in rule.sources]
        for rows in (slice(0, _TRIED), slice(0, len(out))):
            made = rule.applied([each[rows] for each in parts], out[rows])
            if made is None or made.times(out[rows]) > 1:
                return False
        return True

    def _scaled(self, stream: Stream, out: Array) -> Explanation | None:
        for each in self.earlier(stream, out.shape[1])[: _EARLIER // 2]:
            x = wide(self._known(each))
            is_large = np.abs(x) > np.abs(x).max(initial=0.0) / 16
            if is_large.any():
                factor = float(np.median(wide(out)[is_large] / x[is_large]))
                if self._holds(found := Explanation("sum", (each,), (factor,)), out):
                    return found
        return None

    def _routing(self, stream: Stream, out: Array) -> Explanation | None:
        if not stream.slot:
            return None
        count, logits = out.shape[1], self.lane.outputs.get(stream.module)
        near = [self.roots[logits]] if logits in self.roots and self.lane.width(logits) > count else []
        rules = (Explanation("routing", (each,), (count,), act) for each, act in product(near, _ROUTINGS))
        return self._first(rules, out)

    def _finished(self, stream: Stream, out: Array) -> Explanation | None:
        for each in self.earlier(stream, out.shape[1])[: _EARLIER // 2]:
            x = wide(self._known(each))
            cap = _cap_of(x, wide(out))
            rules = [Explanation("function", (each,), act=act) for act in ("log-softmax", f"cap {cap:.6g}")]
            narrowed = product((rules[0], Explanation("copy", (each,))), ("bfloat16", "float16"))
            rules += [replace(rule, via=via) for rule, via in narrowed]
            if (found := self._first(rules, out)) is not None:
                return found
        return None

    def _weighted(self, stream: Stream, out: Array) -> Explanation | None:
        few = slice(0, _TRIED)
        for chosen in combinations(self.earlier(stream, out.shape[1])[: _EARLIER // 2], 2):
            columns = np.stack([wide(self._known(each))[few].reshape(-1) for each in chosen], axis=1)
            if not np.isfinite(columns).all() or not np.isfinite(wide(out[few])).all():
                continue
            shown = np.linalg.lstsq(columns, wide(out[few]).reshape(-1), rcond=None)[0].tolist()
            for factors in (tuple(float(f"{each:.6g}") for each in shown), tuple(shown)):
                if self._holds(found := Explanation("sum", chosen, factors), out):
                    return found
        return None

    def _gated(self, stream: Stream, out: Array) -> Explanation | None:
        alike = self.earlier(stream, out.shape[1])[: _EARLIER // 2]
        doubled = self.earlier(stream, 2 * out.shape[1])[:_EARLIER]
        rules = [Explanation("function", (each,), act=act) for each, act in product(alike, _ACTS)]
        sources = [*((each,) for each in doubled), *permutations(alike, 2)]
        for act, chosen in product((*_ACTS, ""), sources):
            rule = Explanation("gated product", chosen, act=act)
            rules += [rule] if len(chosen) == 2 else [rule, replace(rule, swapped=True)]
        return self._first(rules, out)

    def _known(self, stream: Stream) -> Array:
        values = self.values(stream)
        return np.zeros((0, 0)) if values is None else values

    def _attention(self, stream: Stream, out: Array) -> Explanation | None:
        tried = [each for each in self._triples(stream, out.shape[1]) if self._may_be(each, out)]
        for sources, is_known in [*product(tried, [True] * bool(self._forms)), *product(tried, [False])]:
            parts = cut([self._known(each) for each in sources], out.shape[1])
            forms, turnings = (self._forms, []) if is_known else ([], self.turnings)
            form = None if parts is None else form_of(out, parts, forms, turnings)
            if form is not None:
                self._forms[:] = [form, *(each for each in self._forms if each != form)]
                return Explanation("attention", sources, form=form)
        return None

    def _may_be(self, sources: tuple[Stream, ...], out: Array) -> bool:
        """Return whether the first row holds nothing but values of the first row: it sees no others."""
        parts = cut([self._known(each) for each in sources], out.shape[1])
        if parts is None:
            return False
        values, first = np.sort(wide(parts[2][0])), wide(out[0])
        at = np.searchsorted(values, first).clip(1, len(values) - 1) if len(values) > 1 else 0
        near = np.minimum(np.abs(values[at] - first), np.abs(values[at - 1] - first))
        return bool((near <= np.abs(first) / 8).all())

    def _triples(self, stream: Stream, width: int) -> Iterator[tuple[Stream, ...]]:
        """Yield what may be queries, keys and values of a stream: one stream with all, or three."""
        near = self.earlier(stream)[: 2 * _EARLIER]
        for each in near:
            rest = self.lane.width(each) - width
            if 0 < rest <= 2 * width and rest % 2 == 0:
                yield (each,)
        widths = [self.lane.width(each) for each in near]
        for (v, shared), (k, of_keys), (q, own) in combinations(zip(near, widths, strict=True), 3):
            if shared == of_keys and own == width and not width % shared:
                yield q, k, v


def _made(
    inputs: Sequence[Array], floats: Sequence[Array], held: tuple[Array, Array | None], out: Array
) -> Iterator[Recomputed]:
    weight, bias = held
    if weight.ndim == 2 and floats:
        yield from products(floats[0], weight, bias, out)
    elif weight.ndim == 2 and inputs:
        yield from _embedded(inputs[0], weight, out)
    elif weight.ndim != 2 and (same := [wide(x) for x in floats if x.shape == out.shape]):
        yield from _norms(np.sum(same, axis=0), weight, bias, out)


def _of_experts(inputs: Sequence[Array], held: Sequence[Array], out: Array) -> Iterator[Recomputed]:
    """Yield what chosen experts, a gated MLP each, make of rows: for each function of the gate.

    Args:
        inputs: rows, numbers of the chosen experts, and their weights, in any order.
        held: by expert the matrices of gate and up, one behind the other, and those of down.
        out: what the module returned.
    """
    operands, matrices = _operands_of_experts(inputs, out), _upright(held, out.shape[1])
    if operands is None or matrices is None or operands[1].max(initial=0) >= len(matrices[0]):
        return
    rows, chosen, share = operands
    units = unit_roundoff(out.dtype), working_roundoff(out.dtype)
    for act, is_swapped in product(_ACTS, (False, True)):
        value, error = np.zeros(out.shape), np.zeros(out.shape)
        for expert in np.unique(chosen):
            token, place = np.nonzero(chosen == expert)
            weight = share[token, place][:, None]
            first, down = (each[expert] for each in matrices)
            first = np.roll(first, len(first) // 2, axis=0) if is_swapped else first
            made = _of_expert(rows[token], first, down, act, units)
            part = made.value * weight
            sums = (sum_error(chosen.shape[1], max(units)) + 3 * max(units)) * np.abs(part)
            np.add.at(value, token, part)
            np.add.at(error, token, made.error * np.abs(weight) + sums)
        yield Recomputed(value, error, act + ", gate behind up" * is_swapped)


def _operands_of_experts(inputs: Sequence[Array], out: Array) -> tuple[Array, Array, Array] | None:
    """Return rows, the numbers of their experts and the weights of these; None if they are not there."""
    chosen = next((each for each in inputs if each.dtype.kind in "iu"), None)
    floats = [wide(each) for each in inputs if each.dtype.kind not in "biu"]
    rows, share = (
        next((each for each in floats if like is not None and each.shape == like.shape), None)
        for like in (out, chosen)
    )
    return None if rows is None or chosen is None or share is None else (rows, chosen, share)


def _upright(held: Sequence[Array], width: int) -> tuple[Array, Array] | None:
    """Return the matrices of experts as (expert, 2 * inner, width) and (expert, width, inner)."""
    first, down = (wide(each) for each in held)
    inner = first.size // (2 * width * len(first))
    first = first if first.shape[1:] == (2 * inner, width) else first.swapaxes(1, 2)
    down = down if down.shape[1:] == (width, inner) else down.swapaxes(1, 2)
    fits = first.shape[1:] == (2 * inner, width) and down.shape == (len(first), width, inner)
    return (first, down) if fits else None


def _of_expert(x: Array, first: Array, down: Array, act: str, units: tuple[float, float]) -> Recomputed:
    """Return what one expert makes of rows: `units` are the roundoff of their type and of arithmetic."""
    narrow, work = units
    both = x @ first.T
    doubt = sum_error(x.shape[1], work) * (np.abs(x) @ np.abs(first.T)) + narrow * np.abs(both)
    (gate, up), (gate_off, up_off) = (np.split(each, 2, axis=1) for each in (both, doubt))
    acted = _acted(gate, act)
    made = acted.value * up
    # The functions of gates are nowhere steeper than 1.13.
    off = (1.13 * gate_off + acted.error + narrow * np.abs(acted.value)) * np.abs(up)
    off += np.abs(acted.value) * up_off + 2 * max(units) * np.abs(made)
    sums = sum_error(made.shape[1], work) * (np.abs(made) @ np.abs(down.T))
    return Recomputed(made @ down.T, sums + off @ np.abs(down.T))


def cut(parts: Sequence[Array], width: int) -> tuple[Array, Array, Array] | None:
    """Return queries, keys and values, which may be parts of one array."""
    if len(parts) == 1:
        half = width + (parts[0].shape[1] - width) // 2
        return parts[0][:, :width], parts[0][:, width:half], parts[0][:, half:]
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None


#: Functions of one element between modules, by their definition and which of its variants.
_ACTS = {"silu": ("silu", 0), "gelu": ("gelu", 0), "gelu tanh": ("gelu", 1), "relu": ("relu", 0)}


#: How weights of chosen experts are made of logits.
_ROUTINGS = ("softmax", "softmax, normalised", "sigmoid", "sigmoid, normalised")


def _routed(logits: Array, act: str, count: int, shape: tuple[int, ...]) -> Recomputed:
    """Return the weights of the chosen experts, the largest first, with zeros where a side has more."""
    x = wide(logits)
    share = softmax(x) if act.startswith("softmax") else sigmoid(x)
    top = -np.sort(-share, axis=1)[:, :count]
    if act.endswith("normalised"):
        top = top / top.sum(axis=1, keepdims=True)
    value = np.zeros(shape)
    value[:, :count] = top[:, : shape[1]]
    steps = FUNCTION * working_roundoff(logits.dtype) + FEW * unit_roundoff(logits.dtype)
    return Recomputed(value, 2 * steps * value, act)


def _cap_of(x: Array, out: Array) -> float:
    """Return c with c * tanh(x / c) = out at the largest element; 0 if there is none."""
    if x.shape != out.shape or not x.size:
        return 0.0
    at = np.unravel_index(np.abs(x).argmax(), x.shape)
    value, capped = abs(float(x[at])), abs(float(out[at]))
    low, high = capped, 1e4 * capped
    if not 0 < capped < value or not np.isfinite(value):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(value / middle) < capped else (low, middle)
    # Programs have round numbers here.
    return float(f"{low:.4g}")


def _acted(x: Array, act: str) -> Recomputed:
    if act == "log-softmax":
        top = wide(x) - wide(x).max(1, keepdims=True)
        value = top - np.log(np.exp(top).sum(1, keepdims=True))
        error = (FUNCTION + sum_error(x.shape[1], 1.0)) * working_roundoff(x.dtype) * (1 + np.abs(value))
        steps = 2 * unit_roundoff(x.dtype) * (np.abs(top) + np.abs(value - top))
        return Recomputed(value, error + steps, act)
    if act.startswith("cap "):
        cap = float(act[4:])
        value = cap * np.tanh(wide(x) / cap) if cap else np.full(x.shape, np.inf)
        return Recomputed(value, FUNCTION * max(unit_roundoff(x.dtype), 2.0**-24) * np.abs(value), act)
    name, variant = _ACTS[act]
    found = [*DEFINITIONS[name](CallOperands([x], outputs=[x]), 0, working_roundoff(x.dtype))][variant]
    # Of narrow types, each step of a function may have been rounded.
    steps = FEW * unit_roundoff(x.dtype) * np.abs(wide(x)) if unit_roundoff(x.dtype) > 2.0**-24 else 0.0
    return Recomputed(found.value, steps if found.error is None else found.error + steps, act)


def _embedded(ids: Array, weight: Array, out: Array) -> Iterator[Recomputed]:
    rows = ids.reshape(-1).astype(np.int64)
    if rows.max(initial=0) < len(weight) and weight.shape[1] == out.shape[1]:
        value = wide(weight[rows])
        known = value != 0
        factor = float(np.median(wide(out)[known] / value[known])) if known.any() else 1.0
        error = 2 * unit_roundoff(out.dtype) * np.abs(value * factor)
        yield Recomputed(value, 0.0)
        yield Recomputed(value * factor, error, f"{factor:.6g} times the weight")


def products(x: Array, weight: Array, bias: Array | None, out: Array) -> Iterator[Recomputed]:
    """Yield rows times a matrix, whichever way it lies, with sums in float32 or in the narrower type."""
    b = 0.0 if bias is None or bias.size != out.shape[1] else wide(bias).reshape(-1)
    narrow = min(unit_roundoff(out.dtype), unit_roundoff(weight.dtype)) or 2.0**-24
    a = wide(x)
    upright = [wide(m) for m in (weight.T, weight) if m.shape == (x.shape[1], out.shape[1])]
    made = [(a @ m + b, np.abs(a) @ np.abs(m) + np.abs(b)) for m in upright]
    for unit in dict.fromkeys((working_roundoff(out.dtype), narrow)):
        yield from (Recomputed(value, sum_error(x.shape[1] + 1, unit) * size) for value, size in made)
    yield from _narrow_products(x, weight, bias, out)


def _narrow_products(x: Array, weight: Array, bias: Array | None, out: Array) -> Iterator[Recomputed]:
    """Yield products in a narrower type, if what they returned has no more digits."""
    for via in ("bfloat16", "float16") if unit_roundoff(out.dtype) <= 2.0**-24 and out.size else ():
        if np.array_equal(wide(rounded(out, via)), wide(out)):
            for made in products(rounded(x, via), rounded(weight, via), bias, rounded(out, via)):
                yield replace(made, error=made.error + unit_of(via) * np.abs(made.value), told=f"in {via}")


def _norms(x: Array, weight: Array, bias: Array | None, out: Array) -> Iterator[Recomputed]:
    length = weight.size
    if not length or x.size % length:
        return
    rows, flat = x.reshape(-1, length), out.reshape(-1, length)
    options = [("", {"weight": weight} | ({} if bias is None else {"bias": bias}))]
    if bias is None:
        options.append(("1 + weight, ", {"weight": wide(weight) + 1}))
    for unit in dict.fromkeys((working_roundoff(out.dtype), unit_roundoff(out.dtype))):
        for text, option in options:
            call = CallOperands([rows, *option.values()], option, [flat])
            for name in ("rmsnorm", "layernorm"):
                for each in DEFINITIONS[name](call, 0, unit):
                    error = np.asarray(each.error) + 2 * unit_roundoff(out.dtype) * np.abs(each.value)
                    yield Recomputed(
                        each.value.reshape(out.shape), error.reshape(out.shape), text + each.told
                    )
