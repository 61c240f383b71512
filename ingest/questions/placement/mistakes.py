"""What ranks hold and should not: identities of stored values that fail, or that hold where they must not.

Digests tell which ranks hold, read and learn the same; what they leave open is computed: of what the tensors
of a step are the sums. That a tensor is held otherwise than the same one of other layers is a reason to look
at it, and is not a finding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations, islice
from typing import NamedTuple

import numpy as np

from ingest.identities.audit import StepAudit
from ingest.identities.definition import wide
from ingest.identities.difference import DifferenceShape, Level, named_difference, shape_of_difference
from ingest.questions.divergence.agreement import AgreementOfRanks
from ingest.questions.placement.agree import MANY, Kind, kind_of
from ingest.questions.placement.batches import Batches
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.questions.placement.slot_kinds import (
    SlotKind,
    is_bias,
    outputs_with_gradients,
)
from ingest.questions.placement.states import OUT_OF_STEP, out_of_step, parameters_of_states
from ingest.questions.placement.sums import (
    Account,
    Layer,
    StepElements,
    Summand,
    accounts,
    backward,
    deviation,
    forward,
    gathered_from,
    groups_along,
    is_unmasked_lookup,
    layers_of,
    learned_beside,
    of_parameter,
    partitions_of,
    scattered_sums,
    summand_of,
)
from ingest.reader.choice import named_ranges
from ingest.reader.operator_kinds import is_awaited, is_numbered
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.text import counted

#: Elements that are read of one run where nothing is suspected, and the most that are read of one tensor.
_BUDGET, _MOST = 8 * 1024 * 1024, 4 * 1024 * 1024
#: How many tensors behind a partial sum are tried as its reduction; layers that read one tensor; and biases.
_AHEAD, _READERS, _BIASES = 4, 4, 16
#: Of what share of norm over size a mean is noise: four deviations of the roundoff of bfloat16.
_NOISE = 4 * 2.0**-8
#: Gradients of which it is looked at whether parameters part along them, and how many standard deviations of
#: chance are exceeded then.
_COMPARED, _BY_CHANCE = 8, 3.0
#: Where in the order of execution nothing is.
_NOWHERE = 1 << 30
_MISSING, _WRONG_GROUP, _OTHERWISE = "missing reduction", "wrong group", "operator computes something else"


class Mistake(NamedTuple):
    """What is wrong with a tensor of a step."""

    order: int
    tensor: int
    ranks: tuple[int, ...]
    kind: str
    level: Level
    text: str


class MistakeSearch:
    """Looks at the steps of a run, in order."""

    def __init__(
        self,
        statistics: StepStatistics,
        seen: AgreementOfRanks,
        sums: Mapping[Kind, Kind] | None = None,
        *,
        thorough: bool = True,
        asked: Collection[int] = (),
    ) -> None:
        """Begin.

        Args:
            statistics: reads the steps.
            seen: who holds the same in which step.
            sums: by kind of tensor, the kind of the tensor that is the sum of it over the ranks.
            thorough: compute sums where nothing is suspected, too, as far as the budget goes.
            asked: steps of which sums are computed in any case.
        """
        self.snapshot, self.statistics, self.seen = statistics.snapshot, statistics, seen
        self.sums = sums or {}
        self.layers = layers_of(seen.keys)
        self.kinds = [kind_of(key, 0) for key in seen.keys]
        self.partial = self._partial_sums()
        self.left = _BUDGET if self.partial or (thorough and self.layers) else 0
        self._thorough = thorough
        self._states = parameters_of_states(seen.keys)
        self.asked = {number for number, step in enumerate(self.snapshot.steps) if step in asked}
        self.batches = Batches(statistics, seen)
        self.layers_read = outputs_with_gradients(seen.keys)
        self.beside = dict(chain.from_iterable(map(learned_beside, self.layers)))
        self.reduced_later = set[int]()
        """Steps, by their places, of which most gradients were dumped before they were reduced."""
        self.summed: dict[tuple[int, ...], int] = {}
        """Over how many ranks an output, or what a layer passes back to a gradient, was added up before."""

    def find(self) -> list[LayoutFinding]:
        """Return one finding for each cause, where it is first in order of step and execution."""
        found: dict[str, LayoutFinding] = {}
        has_drifted = False
        for number, step in enumerate(self.snapshot.steps):
            has_drifted = has_drifted or self._drifts(number)
            # What follows from parameters that drifted apart is for `divergence`.
            unlike = [] if has_drifted else self._unlike(number)
            unshared = {} if has_drifted else self._unshared(number, unlike)
            mistakes = sorted(self._of_step(number, unlike, unshared), key=lambda mistake: mistake.order)
            more = len({*unlike, *unshared} - {mistake.tensor for mistake in mistakes})
            for _, tensor, ranks, kind, level, text in mistakes:
                if (known := found.get(kind)) is None:
                    name = self.seen.keys[tensor].name
                    found[kind] = LayoutFinding(step, ranks, name, kind, text, level, more)
                    more = 0
                else:
                    found[kind] = replace(known, follows=known.follows + 1)
        return list(found.values())

    def _of_step(self, number: int, unlike: Sequence[int], unshared: Mapping[int, int]) -> Iterator[Mistake]:
        states = [*out_of_step(self._states, self.seen, self.statistics, number)]
        # A program that adds a bias on every rank does so in every step.
        has_budget = self.left > 0 and (self._thorough or not number)
        if any((unlike, unshared, states, has_budget, number in self.asked, self.batches.shared(number))):
            step = StepOfSums(self, number, unlike, unshared)
            for tensor, ranks, text in states:
                yield step.mistake(tensor, ranks, OUT_OF_STEP, text)
            yield from step.mistakes()

    def _partial_sums(self) -> list[int]:
        """Return the tensors of which another is the sum over the ranks, or whose names say that."""
        return [
            place
            for place, (key, kind) in enumerate(zip(self.seen.keys, self.kinds, strict=True))
            if kind in self.sums or "partial" in key.op_name
            if not is_numbered(key.op_type, key.op_name)  # which is something else in each step
        ]

    def _drifts(self, number: int) -> bool:
        """Return whether ranks that held the same parameter one step before do not any more."""
        parameters = np.flatnonzero(self.seen.kinds == SlotKind.PARAMETER).tolist() if number else []
        return any(self.seen.splits(number - 1, place, place, later=1) for place in parameters)

    def _unlike(self, number: int) -> list[int]:
        """Return the tensors that differ from rank to rank where one expects that they do not.

        That is, most of their kind do not, or the first of their kind, or the same one in the step before.
        """
        seen, unlike = self.seen, list[int]()
        for members in self._held_by_several(number):
            other = [tensor for tensor in members if not seen.is_replicated(number, tensor)]
            is_odd = _is_mostly_shared(len(members), len(other)) or other[:1] != members[:1]
            unlike += [
                tensor for tensor in other if is_odd or (number and seen.is_replicated(number - 1, tensor))
            ]
        return unlike

    def _held_by_several(self, number: int) -> Collection[list[int]]:
        """Return by kind the tensors that several ranks hold in a step, but outputs of optimizers."""
        seen = self.seen
        kinds: dict[Kind, list[int]] = {}
        judged = seen.tells[number] & (seen.kinds != SlotKind.OPTIMIZER_OUTPUT)
        for tensor in np.flatnonzero(judged).tolist():
            if seen.holders(number, tensor) > 1:
                kinds.setdefault(self.kinds[tensor], []).append(tensor)
        return kinds.values()

    def _unshared(self, number: int, odd: Collection[int]) -> dict[int, int]:
        """Return gradients that differ on ranks with the same parameter, if that differs afterwards.

        By gradient, its parameter. Where no later step tells what the update did, most others must be the
        same. Parts of a whole may begin with the same constant: then others of the kind must be the same.
        """
        seen = self.seen
        shared = [
            (gradient, parameter)
            for gradient, parameter in seen.gradients
            if seen.holders(number, gradient) > 1 and (seen.tells[number, parameter] or gradient in odd)
        ]
        unlike = {gradient: own for gradient, own in shared if seen.splits(number, gradient, own)}
        # What differed in the step before, and led to nothing, was dumped before it was reduced.
        unshared = {
            gradient: own
            for gradient, own in unlike.items()
            if not number or not seen.splits(number - 1, gradient, own)
        }
        if number + 1 < len(seen.content):
            applied = {gradient for gradient, own in unlike.items() if seen.splits(number, own, own, later=1)}
            # So was what leads to nothing in this step, and likely all of them.
            if 2 * len(applied) <= len(unlike):
                self.reduced_later.add(number)
            return {gradient: own for gradient, own in unshared.items() if gradient in applied}
        return unshared if len(shared) - len(unshared) >= MANY * len(unshared) else {}


class StepOfSums:
    """One step: what its tensors are the sums of."""

    def __init__(
        self, search: MistakeSearch, number: int, unlike: Sequence[int], unshared: Mapping[int, int]
    ) -> None:
        self._search, self._number = search, number
        self._unlike, self._unshared = frozenset(unlike), unshared
        self._is_before_reduction = number in search.reduced_later
        self._are_own_batches = search.batches.are_apart(number)
        # Ranks that read the same batch and reduce nothing compute the same.
        self._may_be_reduced = self._are_own_batches or self._unlike <= unshared.keys()
        self._is_free = bool(unlike or unshared or number in search.asked)
        self._seen, self._keys = search.seen, search.seen.keys
        self._block = search.statistics.block(search.snapshot.steps[number])
        self._values = StepElements(search.snapshot, self._block)
        self._coordinates = search.snapshot.store.coordinates(search.snapshot.ranks)

    @cached_property
    def _audits(self) -> dict[int, StepAudit]:
        steps = self._search.snapshot.of_step(self._block.step)
        return {rank: StepAudit(step) for rank, step in steps.items()}

    def mistake(
        self, tensor: int, ranks: Sequence[int], kind: str, text: str, level: Level = Level.SHOWN
    ) -> Mistake:
        """Return what is wrong with a tensor."""
        return Mistake(self._order(tensor), tensor, tuple(ranks), kind, level, text)

    def _order(self, tensor: int) -> int:
        """Return where a tensor is in the order of execution; the gradient of a parameter, with its layer."""
        tensor = self._search.beside.get(tensor, tensor)
        rows = self._block.row[:, tensor]
        return int(rows[rows >= 0].min(initial=_NOWHERE))

    def _ranks(self, *tensors: int) -> tuple[int, ...]:
        """Return the ranks that have all of these tensors, if they are several and the budget allows it."""
        if min(tensors) < 0:
            return ()
        ranks = sorted(set.intersection(*({*self._values.holders(tensor)} for tensor in tensors)))
        rows = [self._block.ranks.index(rank) for rank in ranks]
        size = float(np.nansum(self._block.statistic("count")[np.ix_(rows, tensors)]))
        if len(ranks) < 2 or not 0 < size <= _MOST * len(ranks):
            return ()
        if not self._is_free:
            self._search.left -= int(size)
        return tuple(ranks) if self._is_free or self._search.left >= 0 else ()

    def _ways(
        self, tensor: int, ranks: Sequence[int], summands: Sequence[Summand | None], bias: int = -1
    ) -> list[tuple[Account, ...]]:
        """Return the ways in which a tensor is the sum of summands, and of a bias that is not zero."""
        results = self._values.by_rank(ranks, tensor)
        if results is None:
            return []
        # A module that has a weight and is not a linear layer has others.
        known = [summand for summand in summands if summand is not None and summand.is_like(results)]
        if not known or len(known) < len(summands):
            return []
        biases = self._values.by_rank(ranks, bias)
        if biases is not None and not all(own.any() for own in biases.values()):
            biases = None
        return accounts(results, known, biases, partitions_of(ranks, self._coordinates))

    def _holds_same(self, tensor: int, ranks: Sequence[int]) -> bool:
        return len({self._values.content(rank, tensor) for rank in ranks}) == 1

    def mistakes(self) -> list[Mistake]:
        """Return what sums show; or the first difference alone, if it is before all of that."""
        shown = [*self._inputs(), *self._outputs(), *self._passed_back()]
        begun = min((mistake.order for mistake in shown), default=_NOWHERE)
        # A gradient that ranks do not share may follow from an output that was not what it should be.
        own = (mistake for mistake in self._parameter_gradients() if mistake.order < begun)
        shown = [*shown, *own, *self._behind_partial()]
        first = min((mistake.order for mistake in shown), default=_NOWHERE)
        before = [mistake for mistake in self._first_difference() if mistake.order < first]
        return before if before and (not shown or before[0].level is not Level.OPEN) else shown

    def _inputs(self) -> Iterator[Mistake]:
        """Yield that ranks read the same batch which should have batches of their own."""
        if ranks := self._search.batches.shared(self._number):
            told = "the mesh says that they are data-parallel"
            fed = told if self._search.batches.are_told else "other ranks or steps differ"
            text = f"{named_ranges('rank', ranks)} read the same bytes; {fed}"
            yield self.mistake(self._search.batches.first or 0, ranks, "same batch on two ranks", text)
        elif self._unshared and (apart := self._fed_otherwise()):
            text = f"{named_ranges('rank', apart)} have parts of one model by the mesh, and read other bytes"
            yield self.mistake(self._search.batches.first or 0, apart, "ranks differ", text, Level.OPEN)

    def _fed_otherwise(self) -> tuple[int, ...]:
        """Return ranks that differ in their place along `tp` alone, and read other batches; () if none do."""
        batch, places = self._search.batches.first, self._coordinates
        holders = () if batch is None else self._values.holders(batch)
        groups = groups_along("tp", [rank for rank in holders if "tp" in places[rank]], places)
        return next((group for group in groups if not self._holds_same(batch or 0, group)), ())

    def _outputs(self) -> Iterator[Mistake]:
        """Yield outputs of linear layers that are not the sum that they should be."""
        with_bias: Counter[Kind] = Counter()
        without: list[tuple[Layer, tuple[int, ...]]] = []
        named: set[int] = set()
        in_parts: list[tuple[Layer, tuple[int, ...]]] = []
        for layer in self._search.layers:
            ranks = self._ranks(layer.input, layer.weight, layer.output)
            product = forward(self._values, layer, ranks) if ranks else None
            in_parts += [(layer, ranks)] if ranks and product is None else []
            ways = [way for (way,) in self._ways(layer.output, ranks, [product], layer.bias)]
            healthy = [way for way in ways if way.factor == 1 and way.is_biased_once]
            if healthy:
                with_bias[self._search.kinds[layer.output]] += layer.bias >= 0
                yield from self._reduced(layer, ranks, healthy)
            elif ways:
                way = min(ways, key=lambda way: (way.factor != 1, way.size))
                if way.factor == 1 and not way.biases:
                    without.append((layer, ranks))
                else:
                    yield self.mistake(layer.output, ranks, *_wrong_sum(way, self._keys[layer.bias].name))
            elif product is not None and self._computes_alone(layer, ranks):
                deviating = [*self._deviating(layer.output, ranks, product, layer.bias)]
                named |= {mistake.tensor for mistake in deviating}
                yield from deviating
        yield from self._computed_otherwise(named)
        yield from self._gathered(in_parts)
        yield from self._scattered(in_parts)
        for layer, ranks in in_parts:
            if is_unmasked_lookup(self._values, layer, ranks):
                text = (
                    "it is the sum of a row of each rank's part of the table: words of others are not masked"
                )
                yield self.mistake(layer.output, ranks, _OTHERWISE, text)
        for layer, ranks in without:
            others = with_bias[self._search.kinds[layer.output]]
            if others >= MANY:
                text = (
                    f"it is the product of its input and weight, without {self._keys[layer.bias].name}, "
                    f"which {counted(others, 'other layer')} of its kind add"
                )
                yield self.mistake(layer.output, ranks, _OTHERWISE, text, Level.LIKELY)

    def _gathered(self, layers: Sequence[tuple[Layer, tuple[int, ...]]]) -> Iterator[Mistake]:
        """Yield outputs whose parts are products of the inputs of other ranks, or in another order.

        At least one other layer shows the groups and the order in which the parts of a sequence are gathered.
        """
        known = [
            (layer, ranks, sources)
            for layer, ranks in layers
            if (sources := gathered_from(self._values, layer, ranks)) is not None
        ]
        found = [self._gathered_otherwise(*each) for each in known]
        yield from filter(None, found) if None in found else ()

    def _gathered_otherwise(
        self, layer: Layer, ranks: tuple[int, ...], sources: Mapping[int, tuple[int, ...]]
    ) -> Mistake | None:
        wrong = [group for group in sources.values() if self._holds_same(layer.weight, group)]
        if wrong:
            text = f"its input is gathered from {named_ranges('rank', wrong[0])}, which hold the same weight"
            return self._wrong_shard(layer, wrong[0]) or self.mistake(layer.output, ranks, _WRONG_GROUP, text)
        if {*sources.values()} <= {*chain(*partitions_of(ranks, self._coordinates))}:
            return None
        text = f"the parts of its input were put together in the order of ranks {[*sources[ranks[0]]]}"
        return self.mistake(layer.output, ranks, "permutation", text)

    def _scattered(self, layers: Sequence[tuple[Layer, tuple[int, ...]]]) -> Iterator[Mistake]:
        """Yield outputs that are parts of what each rank computes alone, if those of others are of a sum."""
        alone, usual = [], 0
        for layer, ranks in layers:
            ways = scattered_sums(self._values, layer, ranks, partitions_of(ranks, self._coordinates))
            usual += any(len(groups[0]) > 1 for groups in ways)
            if [len(groups[0]) for groups in ways] == [1] and not self._holds_same(layer.weight, ranks):
                text = (
                    "it is a part of what each rank computes of its own input and weight: nothing was "
                    "added up over the ranks"
                )
                alone.append(self.mistake(layer.output, ranks, _MISSING, text))
        yield from alone if usual else ()

    def _computes_alone(self, layer: Layer, ranks: Sequence[int]) -> bool:
        """Return whether each input meets each part of a weight: then nothing is to be added up over ranks.

        An output that is added up may have been dumped while that was under way.
        """
        inputs, parts = (
            len({self._values.content(rank, place) for rank in ranks})
            for place in (layer.input, layer.weight)
        )
        return inputs * parts == len(ranks)

    def _deviating(
        self, tensor: int, ranks: tuple[int, ...], own: Summand, bias: int = -1
    ) -> Iterator[Mistake]:
        """Yield that a tensor is what its operands give, but for few elements of some ranks."""
        off, difference = self._deviation(tensor, ranks, own, bias)
        if difference is not None:
            text = f"on {named_ranges('rank', off)}, it is not what its operands give: {difference}"
            yield self.mistake(tensor, off, named_difference(difference), text)

    def _deviation(
        self, tensor: int, ranks: tuple[int, ...], own: Summand, bias: int
    ) -> tuple[tuple[int, ...], DifferenceShape | None]:
        results, biases = self._values.by_rank(ranks, tensor), self._values.by_rank(ranks, bias)
        if own.may_be_unwritten or not results:
            return (), None
        return deviation(results, own, biases, partitions_of(ranks, self._coordinates))

    def _computed_otherwise(self, named: Collection[int]) -> Iterator[Mistake]:
        """Yield that some replicas computed an output with other numbers than they hold, before they part."""
        for layer in self._search.layers if self._number in self._search.asked else ():
            ranks = self._ranks(layer.weight, layer.output)
            if layer.output in named or not ranks or not self._holds_same(layer.weight, ranks):
                continue
            if off := self._not_proved(layer.output):
                text = f"{_of_ranks(off, ranks)}, of the same {self._keys[layer.weight].name}"
                yield self.mistake(layer.output, off, "ranks differ", text, Level.OPEN)

    def _not_proved(self, tensor: int) -> tuple[int, ...]:
        """Return the ranks on which a tensor does not follow from its operands, if it does on all others."""
        rows, holders = self._block.row, self._values.holders(tensor)
        proved = {
            rank: self._audits[rank].is_proved(int(rows[self._block.ranks.index(rank), tensor]), self._audits)
            for rank in holders
        }
        off = tuple(rank for rank, is_proved in proved.items() if is_proved is False)
        layers = (layer for layer in self._search.layers if layer.output == tensor)
        if len(off) == len(holders) and (layer := next(layers, None)):  # what ranks add up, all prove
            own = forward(self._values, layer, holders)
            off = () if own is None else self._deviation(tensor, holders, own, layer.bias)[0]
        return off if len(off) < len(holders) and None not in proved.values() else ()

    def _reduced(self, layer: Layer, ranks: tuple[int, ...], ways: Sequence[Account]) -> Iterator[Mistake]:
        """Yield that an output was not summed where it should be, or over the wrong ranks."""
        before = self._summed_before((layer.output,), min(way.size for way in ways))
        if any(way.size == 1 for way in ways):
            if before > 1 or self._is_shared_elsewhere(layer.output):
                text = (
                    "it is what each rank computes of its own input and weight: nothing was added up over "
                    f"the ranks{_as_before(before)}"
                )
                yield self.mistake(layer.output, ranks, _MISSING, text)
        elif wrong := self._mixes(ways[0], layer.weight, layer.input):
            over = named_ranges("rank", wrong)
            text = f"it is the sum over {over}, which hold the same weight and other inputs"
            shard = self._wrong_shard(layer, wrong)
            yield shard or self.mistake(layer.output, ranks, _WRONG_GROUP, text)

    def _wrong_shard(self, layer: Layer, group: tuple[int, ...]) -> Mistake | None:
        """Return that ranks hold one part of a weight twice, if each has its own part of other weights.

        These are of its kind, or all that the ranks hold if there is no other. Else, the group is wrong.
        """
        others = {each.weight for each in self._search.layers} - {layer.weight}
        held = [weight for weight in others if {*group} <= {*self._values.holders(weight)}]
        kinds = self._search.kinds
        alike = [weight for weight in held if kinds[weight] == kinds[layer.weight]] or held
        if not alike or any(self._holds_same(weight, group) for weight in alike):
            return None
        text = f"{named_ranges('rank', group)} hold the same bytes; in other layers, each has its own part"
        return self.mistake(layer.weight, group, "wrong shard", text, Level.LIKELY)

    def _summed_before(self, place: tuple[int, ...], over: int) -> int:
        """Return over how many ranks something was added up before; note over how many it is now."""
        return self._search.summed.setdefault(place, over)

    def _is_shared_elsewhere(self, output: int) -> bool:
        """Return whether ranks hold most others of a kind alike, NaN aside, and not this one."""
        kinds, seen, number = self._search.kinds, self._seen, self._number
        nans = np.nansum(self._block.statistic("nan_count"), axis=0)
        alike = [place for place, kind in enumerate(kinds) if kind == kinds[output] and not nans[place]]
        held = [place for place in alike if seen.holders(number, place) > 1]
        other = [place for place in held if not seen.is_replicated(number, place)]
        return output in other and _is_mostly_shared(len(held), len(other))

    def _mixes(self, way: Account, weight: int, other: int) -> tuple[int, ...]:
        """Return ranks that were added up, and hold the same weight and other values beside it."""
        groups = way.groups if way.size > 1 else ()
        mixed = (g for g in groups if not self._holds_same(other, g) and self._holds_same(weight, g))
        return next(mixed, ())

    def _passed_back(self) -> Iterator[Mistake]:
        """Yield gradients of what linear layers read that are not the sum of what these pass back."""
        for output, gradient in self._search.layers_read:
            ranks = self._ranks(output, gradient)
            readers = [
                layer
                for layer in (self._search.layers if ranks else ())
                if ranks[0] in self._values.holders(layer.input)
                and self._values.content(ranks[0], layer.input) == self._values.content(ranks[0], output)
            ]
            if 0 < len(readers) <= _READERS:
                parts = [backward(self._values, layer, ranks) for layer in readers]
                ways = self._ways(gradient, ranks, parts)
                healthy = next((way for way in ways if all(own.factor == 1 for own in way)), None)
                if healthy is not None:
                    pairs = zip(readers, healthy, strict=True)
                    found = (self._reduced_gradient(output, gradient, ranks, *pair) for pair in pairs)
                    yield from islice(filter(None, found), 1)
                else:
                    for account in [own for way in ways[:1] for own in way if own.factor != 1][:1]:
                        yield self.mistake(gradient, ranks, *_wrong_sum(account, ""))

    def _reduced_gradient(
        self, output: int, gradient: int, ranks: tuple[int, ...], layer: Layer, account: Account
    ) -> Mistake | None:

        before = self._summed_before((gradient, layer.output), account.size)
        # Parts must be added up: shared parameters get unequal gradients if not.
        is_shared = self._holds_same(output, ranks) and not self._holds_same(layer.weight, ranks)
        is_partial = is_shared and bool(self._unshared) and not self._holds_same(gradient, ranks)
        if account.size == 1 and (before > 1 or is_partial):
            text = (
                f"of the gradient of {self._keys[output].name}, each of {named_ranges('rank', ranks)} "
                f"has what its part of {layer.path} passes back: it was not added up{_as_before(before)}"
            )
            return self.mistake(gradient, ranks, _MISSING, text)
        wrong = self._mixes(account, layer.weight, layer.output_gradient)
        if not wrong or (shard := self._wrong_shard(layer, wrong)):
            return shard if wrong else None
        over = named_ranges("rank", wrong)
        text = f"what {layer.path} passes back was added up over {over}, which hold the same weight"
        return self.mistake(gradient, ranks, _WRONG_GROUP, text)

    def _parameter_gradients(self) -> Iterator[Mistake]:
        """Yield gradients that differ on ranks which hold the same parameter, and are those of each alone."""
        found: list[Mistake] = []
        are_reduced = self._may_be_reduced
        for layer in self._search.layers:
            pairs = ((layer.weight, layer.weight_gradient), (layer.bias, layer.bias_gradient))
            for parameter, gradient in pairs:
                ranks = self._ranks(parameter, gradient, layer.output_gradient)
                own = (
                    of_parameter(self._values, layer, ranks, bias=parameter == layer.bias) if ranks else None
                )
                ways = [way for (way,) in self._ways(gradient, ranks, [own])]
                if gradient in self._unshared:
                    found += [self._unreduced(parameter, gradient, ranks, way) for way in ways[:1]]
                elif ways and all(way.size > 1 for way in ways):
                    are_reduced = True
                elif own is not None and not ways:
                    yield from self._deviating(gradient, ranks, own)
        # Where nothing is reduced, all ranks compute the same: what differs follows from something before.
        # So does what comes after a gradient that differs because of what its layer read.
        apart = (g for g, own in self._unshared.items() if self._follows_from_inputs(g, own))
        begun = min(map(self._order, apart), default=_NOWHERE) if are_reduced else -1
        yield from (each for each in found if each.kind != _MISSING)
        yield from self._missing([each for each in found if each.kind == _MISSING and each.order < begun])

    def _missing(self, missing: list[Mistake]) -> Iterator[Mistake]:

        if self._part_as_gradients(missing):
            yield from missing
            return
        if self._is_before_reduction:
            return
        tensor, ranks = missing[0].tensor, missing[0].ranks
        name = self._keys[self._unshared[tensor]].name
        text = f"{named_ranges('rank', ranks)} hold the same {name}, and part after the update, but not as "
        yield self.mistake(tensor, ranks, "ranks differ", f"{text}their own gradients differ", Level.OPEN)

    def _part_as_gradients(self, missing: Sequence[Mistake]) -> bool:
        """Return whether parameters part along the differences of the gradients, if that can be told.

        With another rate or another norm to clip to, they part along the gradient that all have: that is as
        like the difference as chance makes it, which has a standard deviation of 1 here.
        """
        step, steps = self._number + 1, self._search.snapshot.steps
        if not missing or step == len(steps):
            return True
        later = StepElements(self._search.snapshot, self._search.statistics.block(steps[step]))
        known = (self._likeness(later, mistake) for mistake in missing[:_COMPARED])
        scores = [score for score in known if score is not None]
        return not scores or sum(scores) / math.sqrt(len(scores)) > _BY_CHANCE

    def _likeness(self, later: StepElements, mistake: Mistake) -> float | None:
        """Return the cosine of how two ranks part and their gradients differ, in deviations of chance."""
        held = {self._values.content(rank, mistake.tensor): rank for rank in mistake.ranks}
        pair = [*held.values()][:2]
        moved = later.by_rank(pair, self._unshared[mistake.tensor])
        passed = self._values.by_rank(pair, mistake.tensor)
        if len(pair) < 2 or moved is None or passed is None:
            return None
        a, b = ([wide(one) for one in own.values()] for own in (moved, passed))
        part, differ = a[0] - a[1], b[1] - b[0]
        size = float(np.linalg.norm(part) * np.linalg.norm(differ))
        is_clear = bool(size) and part.size > _BY_CHANCE**2  # of fewer elements, all may be chance
        return float(np.vdot(part, differ)) / size * math.sqrt(part.size) if is_clear else None

    def _unreduced(self, parameter: int, gradient: int, ranks: tuple[int, ...], way: Account) -> Mistake:

        name = self._keys[parameter].name
        wrong = [group for group in way.groups if not self._holds_same(parameter, group)]
        if self._is_lone_copy(parameter):
            held = {rank: self._values.content(rank, parameter) for rank in ranks}
            counts = Counter(held.values())
            copies = [rank for rank, content in held.items() if counts[content] > 1]
            text = (
                f"{named_ranges('rank', copies)} hold the same bytes, and gradients that are not those of "
                "replicas; of all others of its kind, each rank has a part"
            )
            return self.mistake(parameter, copies, "wrong shard", text, Level.LIKELY)
        if way.size > 1 and wrong:
            text = f"it was added up over {named_ranges('rank', wrong[0])}, which hold other parts of {name}"
            return self.mistake(gradient, ranks, _WRONG_GROUP, text)
        own = "each rank has that of its own inputs"
        if way.size > 1:
            own = f"it was added up over {named_ranges('rank', way.groups[0])}"
        text = f"{named_ranges('rank', ranks)} hold the same {name}, and {own} alone"
        return self.mistake(gradient, ranks, _MISSING, text)

    def _follows_from_inputs(self, gradient: int, parameter: int) -> bool:
        """Return whether a gradient differs because of what its layer read.

        So it is if ranks hold the same parameter and the same gradient of the output, and read other inputs.
        Of shares that are to be added up, the gradients of outputs would differ, too.
        """
        layers = (layer for layer in self._search.layers if layer.weight_gradient == gradient)
        layer = next((layer for layer in layers if layer.calls == 1 and layer.output_gradient >= 0), None)
        if layer is None or not self._seen.tells[self._number, layer.output_gradient]:
            return False
        apart = self._seen.splits(self._number, gradient, parameter)
        own, passed, read = (
            self._seen.labels(self._number, tensor)
            for tensor in (gradient, layer.output_gradient, layer.input)
        )
        return any(
            own[one] != own[other] and passed[one] == passed[other] >= 0 and read[one] != read[other]
            for one, other in combinations(apart, 2)
        )

    def _is_lone_copy(self, parameter: int) -> bool:
        """Return whether ranks hold different parts of all other parameters of its kind."""
        others = [
            self._seen.is_distinct(self._number, place)
            for place, kind in enumerate(self._search.kinds)
            if kind == self._search.kinds[parameter]
            and place != parameter
            and self._seen.holders(self._number, place) > 1
        ]
        return len(others) >= MANY and all(others)

    def _behind_partial(self) -> Iterator[Mistake]:
        """Yield tensors soon after partial sums that are not their sum."""
        order = np.array([self._order(tensor) for tensor in range(len(self._keys))])
        for part in self._search.partial:
            target = self._search.sums.get(self._search.kinds[part])
            if not self._seen.is_distinct(self._number, part):
                continue
            behind = np.flatnonzero((order > order[part]) & (order <= order[part] + _AHEAD))
            for other in sorted(behind.tolist(), key=order.__getitem__):
                ranks = self._ranks(part, other) if target in (None, self._search.kinds[other]) else ()
                if ranks and target is not None and self._is_own(part, other, ranks) and self._is_read(other):
                    text = f"each rank has its own {self._keys[part].name}, which is a partial sum elsewhere"
                    yield self.mistake(other, ranks, _MISSING, text)
                elif ranks and self._seen.is_replicated(self._number, other):
                    if self._has_rest(part, other):
                        yield from self._beside_bias(part, other, ranks)
                elif ranks and self._is_shared_elsewhere(other):
                    yield from self._beside_bias(part, other, ranks)
                else:
                    continue
                break

    def _is_own(self, part: int, other: int, ranks: Sequence[int]) -> bool:
        return all(self._values.content(rank, part) == self._values.content(rank, other) for rank in ranks)

    def _is_read(self, tensor: int) -> bool:
        """Return whether anything but another sum differs after a tensor: else it was not reduced yet."""
        after = (other for other in self._unlike if self._order(other) > self._order(tensor))
        return any(self._search.kinds[other] not in self._search.sums.values() for other in after)

    def _has_rest(self, part: int, other: int) -> bool:
        """Return whether the mean of a tensor is not that of the sum of its parts, but for rounding."""
        mean, norm, count = (self._block.statistic(name) for name in ("mean", "l2_norm", "count"))
        row = int(self._block.present[:, other].argmax())
        rest = float(mean[row, other] - np.nansum(mean[:, part]))
        return not abs(rest) <= _NOISE * float(norm[row, other]) / max(float(count[row, other]), 1.0)

    def _beside_bias(self, part: int, other: int, ranks: tuple[int, ...]) -> Iterator[Mistake]:
        """Yield that a bias is several times beside the sum of parts, or once beside each rank's own part."""
        parts, results = (self._values.by_rank(ranks, tensor) for tensor in (part, other))
        summand = summand_of(parts, results) if parts and results else None
        if summand is None or results is None or self._ways(other, ranks, [summand]):
            return
        counts = self._block.statistic("count")[self._block.ranks.index(ranks[0])]
        length = results[ranks[0]].shape[-1]
        biases = [place for place, key in enumerate(self._keys) if is_bias(key) and counts[place] == length]
        for bias in biases[:_BIASES]:
            name = self._keys[bias].name
            ways = [way for (way,) in self._ways(other, ranks, [summand], bias) if way.factor == 1]
            if any(way.size == 1 and way.biases for way in ways):
                text = f"each rank has its own {self._keys[part].name} and {name}: nothing was added up "
                yield self.mistake(other, ranks, _MISSING, f"{text}over the ranks")
                return
            if [way.biases > 1 for way in ways] == [True]:
                yield self.mistake(other, ranks, *_wrong_sum(ways[0], name))
                return

    def _first_difference(self) -> Iterator[Mistake]:
        """Yield the first tensor that ranks should share and do not, if the parameters that they share drift.

        Two tensors of which most elements are equal do not differ by chance, whatever comes after. What
        differs and has no consequence was dumped while its reduction was under way.
        """
        likely = () if self._are_own_batches else self._unlike
        unlike = {*likely, *self._unshared} if self._unshared and not self._is_before_reduction else ()
        suspects = (tensor for tensor in unlike if not is_awaited(self._keys[tensor].io))
        for tensor in sorted(suspects, key=self._order)[:1]:
            parameter = self._unshared.get(tensor)
            difference = self._difference(tensor, parameter)
            cause = "" if difference is None else named_difference(difference)
            ranks = self._values.holders(tensor)
            same = "" if parameter is None else f", and the same {self._keys[parameter].name}"
            shape = f": {difference}" if difference else ""
            text = f"{named_ranges('rank', ranks)} hold other bytes{same}{shape}"
            if cause:
                off = self._not_proved(tensor)
                text += f"; {_of_ranks(off, ranks)}" if off else ""
                yield self.mistake(tensor, off or ranks, cause, text)
            elif parameter is None or difference is None or self._follows_from_inputs(tensor, parameter):
                yield self.mistake(tensor, ranks, "ranks differ", text, Level.OPEN)
            else:
                found = self._of_own_gradient(tensor, ranks, text)
                if self._part_as_gradients([found]):  # else it was reduced before the update
                    yield found

    def _of_own_gradient(self, tensor: int, ranks: Sequence[int], text: str) -> Mistake:
        """Return what is wrong with a gradient that ranks do not share which hold the same parameter."""
        seen, number = self._seen, self._number
        shared = sum(
            seen.is_replicated(number, gradient)
            for gradient, own in seen.gradients
            if seen.is_replicated(number, own)
        )
        text += f"; the same on all ranks: {counted(shared, 'other gradient')}"
        before = next((n for n in range(number) if seen.is_replicated(n, tensor)), None)
        if before is not None:
            text += f"; in step {self._search.snapshot.steps[before]}, it was the same on all ranks"
        if shared or before is not None:
            return self.mistake(tensor, ranks, _MISSING, text, Level.LIKELY)
        return self.mistake(tensor, ranks, "ranks differ", text, Level.OPEN)

    def _difference(self, tensor: int, parameter: int | None) -> DifferenceShape | None:
        """Return how two ranks differ that hold the same parameter, or that should hold the same."""
        labels = self._seen.labels(self._number, tensor)
        held = tuple(np.flatnonzero(labels >= 0).tolist())
        apart = held if parameter is None else self._seen.splits(self._number, tensor, parameter)
        other = next(place for place in apart if labels[place] != labels[apart[0]])
        all_ranks = self._search.snapshot.ranks
        pair = self._values.by_rank([all_ranks[apart[0]], all_ranks[other]], tensor)
        first, second = pair.values() if pair else (None, None)
        if first is None or second is None or (first.shape, first.dtype) != (second.shape, second.dtype):
            return None
        return shape_of_difference(first, second)


def _is_mostly_shared(members: int, other: int) -> bool:
    """Return whether all but a few members of a kind are shared, which makes these few odd."""
    return members - other >= max(MANY, 2 * other)


def _of_ranks(off: Sequence[int], ranks: Sequence[int]) -> str:
    others = named_ranges("rank", [rank for rank in ranks if rank not in off])
    return f"on {named_ranges('rank', off)}, it is not what its operands give, and on {others} it is"


def _as_before(over: int) -> str:
    return f", as it was in an earlier step over {over}" if over > 1 else ""


def _wrong_sum(way: Account, bias: str) -> tuple[str, str]:
    over = named_ranges("rank", way.groups[0])
    if way.biases > 1:
        text = f"it is the sum over {over} and {way.biases} times {bias}: every rank adds the bias before the"
        return "bias on every rank", f"{text} reduction"
    if way.factor > 1:
        return "doubled reduction", f"it is {way.factor:.4g} times the sum over {over}: it was reduced twice"
    return "factor", f"it is {way.factor:.4g} times the sum over {over}: averaged where it should be summed"
