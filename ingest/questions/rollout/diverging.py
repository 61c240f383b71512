"""The first module that did something else to the same tokens, beyond what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product, zip_longest
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ingest.identities.definition import Array, wide
from ingest.identities.difference import shape_of_difference
from ingest.identities.limits import unit_roundoff
from ingest.questions.rollout.attention import AttentionForm, Recomputed, likelier_form, other_forms
from ingest.questions.rollout.fibres import EQUAL as ARRIVED
from ingest.questions.rollout.recomputed import (
    EVERY_ROW,
    MOST_ROWS,
    Explanation,
    KnownRules,
    Rows,
    SequenceView,
    cut,
)
from ingest.questions.rollout.sequences import (
    Lanes,
    ModuleLink,
    Prefixes,
    SequencePair,
    Stream,
    TensorPlace,
    module_links,
)
from ingest.questions.rollout.weights import ArrivedWeights
from ingest.reader.text import Plain, counted
from workers.model import grouped

#: Pairs of sequences at which a module is recomputed: those that differ most.
_RECOMPUTED = 3
#: Pairs of sequences that are looked at besides those that differ most.
_SEEN = 4
#: Rows of a sequence that differ most, by each of two measures, and others, at which a module is recomputed.
_ROWS = 4
#: Tokens that a divergence names, and elements of a module that are shown.
_NAMED, _ELEMENTS = 8, 4
#: Tokens by which a sequence is found in another one, and the first shift that is not looked for.
_SHIFT = 5
SIDES = TRAINER, ROLLOUT = "trainer", "rollout"
VERDICTS = DIVERGES, OPEN, EXPLAINED, EQUAL = "diverges", "open", "explained", "equal"


@dataclass(frozen=True, slots=True)
class DivergentToken(Plain):
    """A token at which a module did something else."""

    sequence: int
    position: int
    token: int
    times: float
    """The largest difference of its row in units of the limit."""


@dataclass(frozen=True, slots=True)
class TokenDivergence(Plain):
    """The first module that did something else to the same tokens."""

    also = ("text",)

    module: str
    rollout_module: str
    at: str
    """`input`: what lies before the module; `output`: the module itself."""
    side: str
    """The side whose values do not follow by the rule of the other one; "": nothing shows which is right."""
    how: str
    """What is different about it, in words; "" if that is open."""
    rule: str
    """What the other side does, in words."""
    where: str
    elements: int
    size: int
    times: float
    """The largest difference in units of the limit."""
    tokens: tuple[DivergentToken, ...]

    @property
    def text(self) -> str:
        """Say it in a sentence or two."""
        what = "what it reads" if self.at == "input" else "what it writes"
        also = f" ({self.rollout_module})" if self.module != self.rollout_module else ""
        how = f": {self.how}" if self.how else ""
        who = f"the {self.side} is" if self.side else "the two are"
        return (
            f"{self.module}{also}, {what}: {who} not the same{how}. With {self.rule}, "
            f"{self.elements} of {self.size} elements would be off by up to {self.times:.3g} times the "
            f"limit, at {self.where}"
        )


@dataclass(frozen=True, slots=True)
class UnequalElement(Plain):
    """One element of a row that differs."""

    column: int
    """Of the trainer's row."""
    trainer: float
    rollout: float


@dataclass(frozen=True, slots=True)
class ComparedModule(Plain):
    """What one pair of modules made of the same tokens."""

    hidden = ("by_token",)

    module: str
    rollout_module: str
    units: float
    """The root mean square of the differences, as a share of that of the trainer's rows, in units of roundoff
    of the coarser type."""
    largest: float
    """The same of the row that differs most."""
    position: int
    verdict: str
    """`equal`: as far as the types can show. `explained`: each side follows from what it read. `diverges`.
    `open`: no rule is known, or what it needs was not recorded."""
    unequal: int
    """Elements that are not equal bit for bit; of different types, not equal as numbers."""
    token: int
    """The id of the token whose row differs most."""
    elements: tuple[UnequalElement, ...]
    """Those of that row that differ most."""
    tensors: tuple[TensorPlace, TensorPlace]
    """Where both sides have that row."""
    by_token: Array = field(compare=False, repr=False)
    """As `units`, of each of the `columns` of the answer; NaN where it was not measured."""


class _ModulePlace(NamedTuple):
    link: ModuleLink
    pair: SequencePair
    views: tuple[SequenceView, SequenceView]
    streams: tuple[Stream, Stream]
    rows: Rows = EVERY_ROW
    """Those that are looked at; a sample that does not follow tells nothing but that all have to be."""

    @property
    def is_sample(self) -> bool:
        """Whether there are other rows."""
        return not isinstance(self.rows, slice)


class PictureColumn(NamedTuple):
    """A token of the rollout, as a column of a picture."""

    rank: int
    sequence: int
    position: int


class _DifferingPair(NamedTuple):
    share: float
    number: int
    link: ModuleLink
    pair: SequencePair
    rows: Rows
    """Those that tell most of how it differs."""


class ModuleWalk:
    """Goes through the modules in the order in which the trainer runs them."""

    def __init__(
        self,
        lanes: tuple[Lanes, Lanes],
        weights: ArrivedWeights,
        pairs: Sequence[SequencePair],
        prefixes: Prefixes,
    ) -> None:
        """Pair the modules."""
        self.lanes, self._pairs, self._prefixes = lanes, pairs, prefixes
        self._arrived = {each.name for each in weights.tensors if each.verdict == ARRIVED}
        self.links = module_links(*lanes, weights.tensors)
        self._shares: list[tuple[float, int]] = []
        """Of the last module, and their positions."""
        self._forms: list[AttentionForm] = []
        self._rules: tuple[dict[int, KnownRules], dict[int, KnownRules]] = {}, {}
        self._views: dict[tuple[int, int, int], SequenceView] = {}
        self.divergence: TokenDivergence | None = None
        lengths = dict[tuple[int, int], int]()
        for pair in pairs:
            lengths[pair.key] = max(pair.length, lengths.get(pair.key, 0))
        self.columns = tuple(PictureColumn(*key, at) for key, many in lengths.items() for at in range(many))
        self._firsts = dict(zip(lengths, accumulate(lengths.values(), initial=0), strict=False))

    @property
    def unpaired(self) -> tuple[str, ...]:
        """The modules with weights that have no counterpart."""
        return tuple(
            dict.fromkeys(
                f"{module} of the {name}"
                for side, name in enumerate(SIDES)
                for lane in self.lanes[side].values()
                for module in lane.outputs
                if f"{module}.weight" in lane.parameters
                and not any(link.modules[side] == module for link in self.links)
            )
        )

    def modules(self) -> Iterator[ComparedModule]:
        """Yield what each pair of modules made of the same tokens; notes the first divergence."""
        order = dict.fromkeys(module for lane in self.lanes[0].values() for module in lane.outputs)
        for module in order:
            links = [each for each in self.links if each.modules[0] == module]
            if links and (found := self._module(links)) is not None:
                yield found

    def growth(self) -> tuple[tuple[int, float], ...]:
        """Return by first position, 0 and the powers of 2, how far rows of the last module are apart."""
        by_position = sorted(self._shares, key=lambda each: each[1])
        found = grouped((1 << place.bit_length() >> 1, share * share) for share, place in by_position)
        return tuple((first, math.sqrt(sum(each) / len(each))) for first, each in found.items())

    def _module(self, links: Sequence[ModuleLink]) -> ComparedModule | None:
        if self._is_copied(links[0]):
            return None
        measured = [*self._measured(links)]
        if not measured:
            return None
        unit = max(unit_roundoff(each.dtype) for _, _, *rows in measured for each in rows) or 2.0**-24
        self._shares, squares, unequal = [], np.zeros(2), 0
        by_token = np.full(len(self.columns), np.nan, np.float32)
        worst: list[tuple[float, int, int]] = []
        differing: list[_DifferingPair] = []
        for number, (link, pair, a, b) in enumerate(measured):
            off, size, peaks, is_apart, count = _apart(a, b)
            squares += off.sum(), size.sum()
            unequal += count
            scale = np.where(size > 0, size, 1.0)
            shares = np.sqrt(off / scale) / unit
            self._shares += [(share, position) for position, share in enumerate(shares.tolist())]
            of_pair = by_token[self._firsts[pair.key] :][: len(shares)]
            np.fmax(of_pair, shares, out=of_pair)
            last = len(shares) - 1 - int(shares[::-1].argmax())
            worst.append((float(shares[last]), last, number))
            if is_apart:
                rows = _telling_rows(shares[:MOST_ROWS], (peaks / np.sqrt(scale))[:MOST_ROWS])
                differing.append(_DifferingPair(float(shares.max()), len(differing), link, pair, rows))
        share = math.sqrt(squares[0] / max(squares[1], 1e-300)) / unit
        verdict = self._verdict(sorted(differing, key=itemgetter(0, 1))[::-1])
        largest, position, number = max(worst)
        token, elements, tensors = self._shown(*measured[number], position)
        return ComparedModule(
            *(*links[0].modules, share, largest, position, verdict, unequal),
            token,
            elements,
            tensors,
            by_token,
        )

    def _shown(
        self, link: ModuleLink, pair: SequencePair, a: Array, b: Array, position: int
    ) -> tuple[int, tuple[UnequalElement, ...], tuple[TensorPlace, TensorPlace]]:
        """Return the token at a position, its elements that differ most, and where both sides have them."""
        x, y = (wide(each[position]) for each in (a, b))
        most = np.argsort(-np.abs(x - y), kind="stable")[:_ELEMENTS]
        elements = tuple(
            UnequalElement(link.firsts[0] + int(each), float(x[each]), float(y[each]))
            for each in most
            if x[each] != y[each]
        )
        lanes = [self.lanes[side][rank] for side, rank in enumerate(pair.ranks)]
        ours, theirs = (
            lane.tensor_at(lane.outputs[name], pair.sequences[side].places[position])
            for side, (lane, name) in enumerate(zip(lanes, link.modules, strict=True))
        )
        return self._prefixes.token[pair.sequences[0].prefixes[position]], elements, (ours, theirs)

    def _measured(
        self, links: Sequence[ModuleLink]
    ) -> Iterator[tuple[ModuleLink, SequencePair, Array, Array]]:
        for link, pair in product(links, self._pairs):
            if pair.ranks == link.ranks and (rows := self._rows(link, pair)) is not None:
                yield link, pair, *rows

    def _verdict(self, differing: Sequence[_DifferingPair]) -> str:
        if not differing or self.divergence is not None:
            return OPEN if differing else EQUAL
        others = [each for each in differing[1:] if self._is_seen(each.pair)]
        for each in [differing[0], *others][:_RECOMPUTED]:
            told = self._judged(each)
            if isinstance(told, TokenDivergence):
                self.divergence = told
                return DIVERGES
            if told == OPEN:
                return OPEN
        return EXPLAINED

    def _is_copied(self, link: ModuleLink) -> bool:
        """Return whether modules return what one in them returned, which are a pair, too."""
        pair = next((each for each in self._pairs if each.ranks == link.ranks), None)
        if pair is None:
            return False
        views = self._view(0, pair), self._view(1, pair)

        def outputs(of: ModuleLink) -> list[Stream]:
            return [view.lane.outputs[name] for view, name in zip(views, of.modules, strict=True)]

        own = outputs(link)
        roots = [view.roots.get(output, output) for view, output in zip(views, own, strict=True)]
        if roots[0] == own[0] or roots[1] == own[1]:
            return False
        return any(outputs(each) == roots for each in self.links if each.ranks == link.ranks)

    def _rows(self, link: ModuleLink, pair: SequencePair) -> tuple[Array, Array] | None:
        """Return the rows of the outputs that both sides have in common, in the columns of a link."""
        found = []
        for side in (0, 1):
            lane = self.lanes[side][pair.ranks[side]]
            values = lane.values(lane.outputs[link.modules[side]], pair.places(side))
            if values is not None:
                found.append(link.columns(values, side))
        if len(found) < 2:
            return None
        if self.lanes[0][pair.ranks[0]].outputs[link.modules[0]].slot:  # a side may choose more experts
            width = max(each.shape[1] for each in found)
            found = [np.pad(each, ((0, 0), (0, width - each.shape[1]))) for each in found]
        return (found[0], found[1]) if found[0].shape == found[1].shape else None

    def _judged(self, of: _DifferingPair) -> TokenDivergence | str:
        views = self._view(0, of.pair), self._view(1, of.pair)
        streams = views[0].lane.outputs[of.link.modules[0]], views[1].lane.outputs[of.link.modules[1]]
        place = _ModulePlace(of.link, of.pair, views, streams, of.rows)
        told = self._judged_at(place)
        is_open = place.is_sample and told != EXPLAINED
        return self._judged_at(place._replace(rows=EVERY_ROW)) if is_open else told

    def _judged_at(self, place: _ModulePlace) -> TokenDivergence | str:
        views, streams = place.views, place.streams
        weighted = [view.is_weighted(stream) for view, stream in zip(views, streams, strict=True)]
        if weighted == [False, True]:
            return self._judged_merged(place)  # in all rows
        if not weighted[0]:
            return self._judged_read(place)
        read = self._judged_read(place) if views[0].read_by(streams[0]) else self._judged_numbers(place)
        written = read if isinstance(read, TokenDivergence) else self._judged_written(place)
        return written if isinstance(written, TokenDivergence) or read == EXPLAINED else OPEN

    def _is_seen(self, pair: SequencePair) -> bool:
        """Return whether a pair was looked at before, or may be: each reads the streams again."""
        return len(self._views) < 2 * _SEEN or (0, pair.ranks[0], pair.sequences[0].number) in self._views

    def _view(self, side: int, pair: SequencePair) -> SequenceView:
        key = side, pair.ranks[side], pair.sequences[side].number
        if key not in self._views:
            lane = self.lanes[side][pair.ranks[side]]
            rules = self._rules[side].setdefault(lane.rank, {})
            self._views[key] = SequenceView(lane, pair.common(side), self._forms, rules)
        return self._views[key]

    def _judged_numbers(self, place: _ModulePlace) -> TokenDivergence | str:
        """Judge the whole numbers that an embedding read: they have to be the same."""
        a, b = (
            next((x for each in view.inputs(stream)[:1] if (x := view.values(each)) is not None), None)
            for view, stream in zip(place.views, place.streams, strict=True)
        )
        if a is None or b is None or a.shape != b.shape:
            return OPEN
        if (a == b).all():
            return EXPLAINED
        row = int(np.argmax((a != b).any(axis=1)))
        how = f"{b[row, 0]:.0f} where the trainer reads {a[row, 0]:.0f}"
        return self._divergence(
            place, "input", 1, how, ("what the trainer reads", Recomputed(wide(a), 0.0), b)
        )

    # What lies between modules

    def _judged_read(self, place: _ModulePlace) -> TokenDivergence | str:
        """Judge what modules read: the rule that one side shows has to hold on the other side."""
        told = self._judged_by(0, place)
        is_told = told in (EXPLAINED, DIVERGES) or (isinstance(told, TokenDivergence) and told.how)
        other = told if is_told else self._judged_by(1, place)
        return other if told == OPEN or other == EXPLAINED else told

    def _judged_by(self, side: int, place: _ModulePlace) -> TokenDivergence | str:
        rule = self._rule(side, place)
        out = place.views[1 - side].read(place.streams[1 - side])
        if rule is None or out is None or (parts := self._counterparts(side, rule, place)) is None:
            return OPEN
        made, shown = rule.applied(parts, out, place.rows), out[place.rows]
        if made is None or made.value.shape != shown.shape:
            return OPEN
        own = self._likelier(side, rule, place, parts)
        if own is None and made.times(shown) <= 1:
            return EXPLAINED
        if place.is_sample:
            return DIVERGES
        return self._failed(side, place, (rule, parts, own), (made, out))

    def _failed(
        self,
        side: int,
        place: _ModulePlace,
        shown: tuple[Explanation, list[Array], AttentionForm | None],
        failing: tuple[Recomputed, Array],
    ) -> TokenDivergence | str:
        """Describe that the rule of one side does not hold on the other, unless one of that holds on both."""
        (rule, parts, own), (made, out) = shown, failing
        view = place.views[1 - side]
        how = ""
        if rule.form is not None:
            how = own.against(rule.form) if own is not None else self._surrounded(side, place, rule, out)
        if not how and rule.form is not None:
            own = next(other_forms(rule.form, cut(parts, out.shape[1]), out, view.turnings), None)
            how = "" if own is None else own.against(rule.form)
            if own is not None and self._is_form_of(own, rule, place.views[side], place.streams[side]):
                return EXPLAINED
        at = "input" if place.views[0].is_weighted(place.streams[0]) else "output"
        theirs = self._rule(1 - side, place)
        if lacking := "" if how else self._only_here(1 - side, place, theirs):
            # What one side has and the other does not run is the mistake of the rollout.
            how = f"only the {SIDES[1 - side]} runs {lacking}"
            text = rule.text if side == 0 else f"{rule.text} in the {TRAINER}"
            return self._divergence(place, at, 1, how, (text, made, out))
        if not how and theirs is not None and theirs.text != rule.text:
            how = theirs.text
        return self._divergence(place, at, 1 - side, how, (rule.text, made, out))

    def _surrounded(self, side: int, place: _ModulePlace, rule: Explanation, out: Array) -> str:
        """Return in words which other rows, or positions, the attention of the other side goes by."""
        view, form = place.views[1 - side], rule.form
        positions = view.positions
        if form is None or positions is None:
            return ""
        shift = positions - np.arange(len(positions))
        if np.ptp(shift) and form.turning is not None:
            made = form.applied(cut(self._counterparts(side, rule, place) or [], out.shape[1]), positions)
            if made is not None and made.times(out) <= 1:
                odd = int(np.argmax(shift != shift[0]))
                return f"position {positions[odd]} where {odd + shift[0]} follows"
        return self._among_others(side, place, rule, out)

    def _among_others(self, side: int, place: _ModulePlace, rule: Explanation, out: Array) -> str:
        """Return in words that the attention of the other side goes by all rows of its batch."""
        if rule.form is None or (around := place.views[1 - side].around()) is None:
            return ""
        whole, own = around
        views = (whole, place.views[1]) if side else (place.views[0], whole)
        parts = cut(self._counterparts(side, rule, place._replace(views=views)) or [], out.shape[1])
        made = rule.form.applied(parts, whole.positions)
        if not own[0] or made is None or made.at(own).times(out) > 1:
            return ""
        return "tokens before its own, of other sequences or padding, are seen"

    def _likelier(
        self, side: int, rule: Explanation, place: _ModulePlace, parts: Sequence[Array]
    ) -> AttentionForm | None:
        """Return the form that the other side more likely has, where its type is too narrow for limits."""
        if rule.form is None:
            return None
        outs = [view.read(stream) for view, stream in zip(place.views, place.streams, strict=True)]
        mine, theirs = outs[side], outs[1 - side]
        own = [values for each in rule.sources if (values := place.views[side].values(each)) is not None]
        if mine is None or theirs is None or unit_roundoff(theirs.dtype) <= 2.0**-24:
            return None
        three = cut(parts, theirs.shape[1]), cut(own, mine.shape[1])
        if three[0] is None or three[1] is None:
            return None
        return likelier_form(rule.form, [(three[0], theirs), (three[1], mine)])

    def _only_here(self, side: int, place: _ModulePlace, rule: Explanation | None) -> str:
        """Return the modules without a counterpart from which a module of a side read, by its own rule."""
        view = place.views[side]
        linked = {link.modules[side] for link in self.links}
        read = (*view.read_by(place.streams[side]), *(rule.sources if rule is not None else ()))
        leaves = {leaf for each in read for leaf in (each, *view.leaves(each, ()))}
        return ", ".join(
            name
            for name, stream in view.lane.outputs.items()
            if stream in leaves and name not in linked and f"{name}.weight" in view.lane.parameters
        )

    def _rule(self, side: int, place: _ModulePlace) -> Explanation | None:
        """Return from which outputs of paired modules it follows what a module of a side read."""
        view, stream = place.views[side], place.streams[side]
        stops = frozenset(
            view.roots[output]
            for link in self.links
            if (output := view.lane.outputs.get(link.modules[side])) in view.roots
            and (output != stream or view.is_weighted(stream))
        )
        total: dict[Stream, float] = {}
        for each in view.read_by(stream):
            for leaf, factor in view.leaves(each, stops).items():
                total[leaf] = total.get(leaf, 0.0) + factor
        if len(total) == 1 and not total.keys() <= stops:
            return view.explained(next(iter(total)))
        return Explanation("sum", tuple(total), tuple(total.values())) if total else None

    def _counterparts(self, side: int, rule: Explanation, place: _ModulePlace) -> list[Array] | None:
        """Return what the other side has instead of the sources of a rule; None if it lacks one."""
        own, other = place.views[side], place.views[1 - side]
        parts = []
        for source in rule.sources:
            of_source = next(
                (
                    links
                    for name, stream in own.lane.outputs.items()
                    if own.roots.get(stream) == source
                    and (links := self._links_of(side, name, place.pair.ranks))
                ),
                [],
            )
            found = [
                link.columns(values, 1 - side)
                for link in of_source
                if (values := other.values(other.lane.outputs[link.modules[1 - side]])) is not None
            ]
            if not found or len(found) < len(of_source):
                return None
            parts.append(found[0] if not of_source[0].length else np.concatenate(found, axis=1))
        return parts

    def _links_of(self, side: int, module: str, ranks: tuple[int, int]) -> list[ModuleLink]:
        found = [each for each in self.links if (each.modules[side], each.ranks) == (module, ranks)]
        return sorted(found, key=lambda each: each.firsts[side])

    @staticmethod
    def _is_form_of(form: AttentionForm, rule: Explanation, view: SequenceView, stream: Stream) -> bool:
        out = view.read(stream)
        parts = [values for each in rule.sources if (values := view.values(each)) is not None]
        made = None if out is None else form.applied(cut(parts, out.shape[1]))
        return made is not None and out is not None and made.times(out) <= 1

    # Modules with weights

    def _judged_written(self, place: _ModulePlace) -> TokenDivergence | str:
        """Judge what modules made of what they read: attributes that hold on one side hold on the other."""
        sides = [*zip(place.views, place.streams, strict=True)]
        whole = [view.values(stream) for view, stream in sides]
        outs = [None if each is None else each[place.rows] for each in whole]
        rules = [view.of_module(stream, rows=place.rows) for view, stream in sides]
        made, holding = _holding(rules, outs)
        if holding[0] & holding[1]:
            return self._judged_weights(place)
        if place.is_sample:
            return OPEN
        failing = 1 if holding[0] else 0
        tried = holding[1 - failing] & {each.told for each in made[failing]}
        rule, out = min(tried, default=None), outs[failing]
        best = [each for each in made[failing] if each.told == rule]
        if rule is None or out is None or not best or self._is_part(place):
            return OPEN
        how = min(holding[failing], default="") + f", and not {rule}" * bool(rule and holding[failing])
        nearest = _nearest(best, out)
        return self._divergence(place, "output", failing, how, (rule or "its weights", nearest, out))

    def _judged_merged(self, place: _ModulePlace) -> TokenDivergence | str:
        """Judge a module of the rollout that is several of the trainer: its weight has to do for both."""
        weight = place.views[1].weight(place.streams[1])
        outs = [view.values(stream) for view, stream in zip(place.views, place.streams, strict=True)]
        if weight is None or outs[0] is None or outs[1] is None:
            return OPEN
        own, theirs = (
            [*view.of_module(stream, weight)] for view, stream in zip(place.views, place.streams, strict=True)
        )
        if not own or not theirs or _nearest(theirs, outs[1]).times(outs[1]) > 1:
            return OPEN
        made = _nearest(own, outs[0])
        if made.times(outs[0]) <= 1:
            return EXPLAINED
        how = f"its weight does not do what the trainer does: {self._told(0, place)}"
        return self._divergence(place, "output", 1, how, ("its weight", made, outs[0]))

    def _told(self, side: int, place: _ModulePlace) -> str:
        rule = self._rule(side, place)
        return "" if rule is None else rule.text

    def _is_part(self, place: _ModulePlace) -> bool:
        held = place.views[1].lane.parameters.get(f"{place.link.modules[1]}.weight")
        ranks = [
            {each.ranks[side] for each in self.links if each.modules[side] == place.link.modules[side]}
            for side in (0, 1)
        ]
        is_product = held is not None and len(held.shape) > 1
        return is_product and not place.link.length and max(map(len, ranks)) > 1

    def _judged_weights(self, place: _ModulePlace) -> TokenDivergence | str:
        """Judge whether both modules used the same weights, if those of the rollout did not arrive."""
        module = place.link.modules[1]
        held = {name for name in place.views[1].lane.parameters if name.rpartition(".")[0] == module}
        held = held & {f"{module}.weight"} or held
        if held and held <= self._arrived:
            return EXPLAINED
        out, theirs = place.views[1].values(place.streams[1]), place.views[0].weight(place.streams[0])
        made = [*place.views[1].of_module(place.streams[1], theirs)] if theirs is not None else []
        if out is None or not made:
            return OPEN
        best = _nearest(made, out)
        if best.times(out) <= 1:
            return EXPLAINED
        return self._divergence(place, "output", 1, "other weights", ("the trainer's weights", best, out))

    def _divergence(
        self, place: _ModulePlace, at: str, failing: int, how: str, shown: tuple[str, Recomputed, Array]
    ) -> TokenDivergence:
        """Describe a divergence.

        Args:
            place: where it is.
            at: `input` or `output`.
            failing: the side whose values do not follow.
            how: what the side does instead, if that is known.
            shown: the rule of the other side, what it makes, and what is there.
        """
        rule, made, out = shown
        times = made.beyond(out)
        bad = times > 1
        rows = np.flatnonzero(bad.any(axis=1))
        prefixes = place.pair.sequences[failing].prefixes
        # If nothing says what the trainer does, the rollout need not be the side that is wrong.
        side = SIDES[failing] if failing or how else ""
        tokens = tuple(
            DivergentToken(
                place.pair.sequences[0].number,
                int(row),
                self._prefixes.token[prefixes[row]],
                float(times[row].max()),
            )
            for row in rows[:_NAMED]
        )
        should = np.where(bad, made.value, wide(out)).astype(out.dtype)
        shape = shape_of_difference(should, out)
        if not how and shape.how != "other":
            how = shape.how if shape.value is None else f"{shape.how} {shape.value:.6g}"
        columns = np.flatnonzero(bad.any(axis=0))
        where = f"positions {_places(rows, len(out))}" if len(rows) else "all positions together"
        if 0 < len(columns) < bad.shape[1]:
            where += f", columns {_places(columns, bad.shape[1])}"
        return TokenDivergence(
            *place.link.modules,
            at,
            side,
            how,
            rule,
            where,
            elements=int(bad.sum()),
            size=bad.size,
            times=float(times.max()),
            tokens=tokens,
        )


def shifted_tokens(a: Lanes, b: Lanes) -> TokenDivergence | None:
    """Return that the sequences of one side begin a few tokens later than those of the other; None if not."""
    sequences = [
        [ids for lane in lanes.values() for ids in lane.token_ids() if len(ids) > _SHIFT] for lanes in (a, b)
    ]
    for later, shift in product((1, 0), range(1, _SHIFT)):
        if _is_shifted(sequences[later], sequences[1 - later], shift):
            name, other = (next(iter(lanes.values())).embedding for lanes in (a, b))
            many = len(sequences[1])
            how = f"its sequences begin {counted(shift, 'token')} {'later' if later else 'earlier'}"
            rule = "the tokens of the trainer"
            return TokenDivergence(
                name, other, "input", ROLLOUT, how, rule, "position 0", many, many, math.inf, ()
            )
    return None


def _is_shifted(later: Sequence[list[int]], others: Sequence[list[int]], shift: int) -> bool:
    starts = {tuple(each[shift : shift + _SHIFT]) for each in others}
    return bool(later) and all(tuple(each[:_SHIFT]) in starts for each in later)


def _apart(a: Array, b: Array) -> tuple[Array, Array, Array, bool, int]:
    """Return how far rows are apart.

    Returns:
        By row the mean squares of the difference and of `a`, and the largest difference; whether any is
        beyond what the types can show; and how many elements are not equal.
    """
    x, y = wide(a), wide(b)
    size = np.einsum("ij,ij->i", x, x) / max(x.shape[1], 1)
    is_equal = x == y
    if is_equal.all():
        return np.zeros(len(x)), size, np.zeros(len(x)), False, 0
    off = np.abs(x - y)
    limits = unit_roundoff(a.dtype) * np.abs(x) + unit_roundoff(b.dtype) * np.abs(y)
    unequal = off.size - int((is_equal | (np.isnan(x) & np.isnan(y))).sum())
    squares = np.einsum("ij,ij->i", off, off) / max(x.shape[1], 1)
    return squares, size, off.max(axis=1, initial=0.0), bool((off > limits).any()), unequal


def _telling_rows(shares: Array, peaks: Array) -> Rows:
    """Return the rows that differ most, as a whole and in one element, and some of all others."""
    if len(shares) <= 3 * _ROWS:
        return EVERY_ROW
    most = [np.argsort(each)[-_ROWS:] for each in (shares, peaks)]
    return np.unique(np.concatenate([*most, np.linspace(0, len(shares) - 1, _ROWS).astype(np.int64)]))


def _holding(
    rules: Sequence[Iterator[Recomputed]], outs: Sequence[Array | None]
) -> tuple[list[list[Recomputed]], list[set[str]]]:
    """Return by side what rules make, and which hold: up to the first that holds on both."""
    made = list[Recomputed](), list[Recomputed]()
    holding = set[str](), set[str]()
    for of_sides in zip_longest(*rules):
        for side, (each, out) in enumerate(zip(of_sides, outs, strict=True)):
            if each is not None and out is not None:
                made[side].append(each)
                holding[side].update([each.told] * (each.times(out) <= 1))
        if holding[0] & holding[1]:
            break
    return [*made], [*holding]


def _nearest(made: Sequence[Recomputed], out: Array) -> Recomputed:
    return min(made, key=lambda each: each.times(out))


def _places(numbers: Array, length: int) -> str:
    first, last = int(numbers[0]), int(numbers[-1])
    many = "" if len(numbers) == last - first + 1 else f" ({len(numbers)} of them)"
    return f"{first} on{many}" if first and last == length - 1 else f"{first} to {last}{many}"
