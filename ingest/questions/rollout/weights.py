"""Whether the weights of a trainer arrived in the engine that samples for it: tensor by tensor, by value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from typing import Annotated

import numpy as np

from ingest.identities.definition import wide
from ingest.identities.limits import sum_error, unit_of
from ingest.questions.question import Note, Option, Part, Question, Shown, Table
from ingest.questions.rollout.fibres import (
    DIFFERENT,
    EQUAL,
    MISPLACED,
    OPEN,
    PADDING,
    ROWS,
    STALE,
    VERDICTS,
    Array,
    Arrived,
    FibreStretch,
    HeldParameter,
    Program,
    fibre_count,
    fibre_length,
    fibres_of,
    wire_fibres,
    zero_number,
)
from ingest.questions.rollout.misplaced import (
    SAME,
    Trainer,
    correlation,
    measured,
    misplaced,
)
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import Plain, counted, shape_text

#: Steps of the trainer, the nearest ones, in which it is looked for what does not come from the given one.
_OTHER_STEPS = 4
#: What correlates less with the trainer's has nothing to do with it.
_ALIKE = 0.5
#: Vectors of positive numbers are alike whatever they are: these have to be nearer to one another.
_NEAR = 0.25
#: The largest relative error of an element that is rounded to a type with a scale: half a unit in the last
#: place of a normal number, and twice that for the rounding of the scale.
_QUANTISED = {"float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}


@dataclass(frozen=True, slots=True)
class ArrivedWeights(Shown, Plain):
    """Where each parameter of an engine comes from."""

    trainer: str
    rollout: str
    step: int
    rollout_step: int
    tensors: tuple[Arrived, ...]
    """Of the engine, by rank, in its order."""
    unused: tuple[str, ...]
    """Parameters of the trainer of which no part was found in the engine."""
    left_out: tuple[LeftOut, ...] = ()

    also = ("counts",)

    @property
    def counts(self) -> dict[str, int]:
        """The number of tensors by verdict."""
        return {
            verdict: sum(each.verdict == verdict for each in self.tensors)
            for verdict in VERDICTS
            if verdict != PADDING
        }

    @property
    def counts_text(self) -> str:
        """Say how many there are of each verdict."""
        told = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items() if count)
        return f"{counted(len(self.tensors), 'tensor')}, {told}"

    @property
    def is_alarm(self) -> bool:
        """Whether any tensor is stale, different or misplaced."""
        return any(each.verdict in (STALE, DIFFERENT, MISPLACED) for each in self.tensors)

    def table(self) -> Table[Arrived]:
        """Return a row for each tensor, those that did not arrive first."""
        return Table(
            {
                "verdict": lambda tensor: tensor.verdict,
                "rank": lambda tensor: str(tensor.rank),
                "name": lambda tensor: tensor.name,
                "shape": lambda tensor: shape_text(tensor.shape),
                "from": lambda tensor: tensor.text,
            },
            sorted(self.tensors, key=lambda tensor: VERDICTS.index(tensor.verdict)),
            "tensor",
            right=("rank",),
            spare=("shape", "rank"),
        )

    def report(self) -> Iterator[Part]:
        """Yield what people read."""
        steps = f"step {self.rollout_step} of the rollout against step {self.step} of the trainer"
        yield f"{steps}: {self.counts_text}"
        yield self.table()
        if self.unused:
            some = ", ".join(self.unused[:3]) + (", ..." if len(self.unused) > 3 else "")
            yield Note(f"{counted(len(self.unused), 'parameter')} of the trainer not found: {some}", OPEN)


def compare_weights(
    trainer: Annotated[str, Option("STORE, STORE@step=N, or a dump.", "TRAINER", is_argument=True)],
    rollout: Annotated[
        str, Option("The engine that samples, in the same form.", "ROLLOUT", is_argument=True)
    ],
) -> ArrivedWeights:
    """Say whether the weights of a trainer arrived in the engine that samples: by value, not by name.

    Each parameter of ROLLOUT is looked for in TRAINER, whatever it is called there and however it is cut:
    q, k and v fused or apart, experts stacked or apart, transposed, shards of a rank, cast to a narrower
    type, quantised with a scale. `equal` tensors have the trainer's values, up to what is said. `stale` ones
    have those of another step. `different` ones do not, and numbers say how. `misplaced` ones have the right
    values where other layers or tensors of the rank show that these do not belong. `open` are those that
    nothing in TRAINER resembles, or of which values do not tell whether their order is right.

    Without a step, the last one of ROLLOUT is compared with the same one of TRAINER, or else with its last.
    The command exits with 5 if any tensor is stale, different or misplaced.

    Returns:
        The answer. All parameters of both sides are read once, and again to measure what differs; up to four
        other steps of the trainer only if something was not found. Memory: 32 bytes for each row and column
        of the trainer and type, and the largest parameter four times.

    Raises:
        UsageError: a side has no parameters with elements, or not that step.
        DamagedStore: elements are damaged.
    """
    return arrived_weights(Program(trainer), Program(rollout))


def arrived_weights(trainer: Program, rollout: Program) -> ArrivedWeights:
    """Return the same of sides that are open."""
    of_rollout = rollout.steps[-1]
    of_trainer = of_rollout if of_rollout in trainer.steps else trainer.steps[-1]
    search = _WeightSearch(trainer, of_trainer, rollout.parameters(of_rollout))
    others = sorted({*trainer.steps} - {of_trainer}, key=lambda step: abs(step - of_trainer))
    tensors = search.arrived(others)
    return ArrivedWeights(
        trainer.label,
        rollout.label,
        of_trainer,
        of_rollout,
        tuple(misplaced(tensors)),
        search.unused(tensors),
        (*trainer.source.left_out, *rollout.source.left_out),
    )


class _WeightSearch:
    def __init__(self, program: Program, step: int, wanted: Sequence[HeldParameter]) -> None:
        """Read the parameters of both."""
        self._program, self._step, self._wanted = program, step, wanted
        self._fibres = wire_fibres(wanted)
        self._types = [each.dtype for each in self._fibres]
        self._trainer = Trainer(program.parameters(step), set(self._types))
        self._named = {(each.name, each.shape): each for each in self._trainer.tensors}
        self._order = {
            each.name: -place for place, each in enumerate(reversed(self._trainer.tensors), start=1)
        }
        self._scales: dict[tuple[int, str], str] = {}

    def unused(self, tensors: Iterable[Arrived]) -> tuple[str, ...]:
        """Return the names of the trainer's parameters that are in none of these tensors."""
        used = {stretch.of for each in tensors for stretch in each.stretches}
        return tuple(dict.fromkeys(each.name for each in self._trainer.tensors if each.name not in used))

    def arrived(self, others: Sequence[int]) -> list[Arrived]:
        """Return where each parameter comes from.

        Args:
            others: further steps of the trainer, the nearest first.
        """
        found = [self._found(number, self._trainer, step=self._step) for number in range(len(self._wanted))]
        for step in others[:_OTHER_STEPS]:
            missing = [number for number, each in enumerate(found) if each.of_verdict(OPEN)]
            if not missing:
                break
            trainer = Trainer(self._program.parameters(step), {self._types[each] for each in missing})
            for number in missing:
                found[number] = _with_stale(found[number], self._found(number, trainer, step))
        known = [
            self._measured(number, each) if each.of_verdict(OPEN) else each
            for number, each in enumerate(found)
        ]
        return [
            replace(each, stretches=(FibreStretch(ROWS, 0, 0, EQUAL, how=f"the scale of {weight}"),))
            if (weight := self._scales.get((each.rank, each.name))) and each.of_verdict(OPEN)
            else each
            for each in known
        ]

    def _found(self, number: int, trainer: Trainer, step: int) -> Arrived:
        wanted, fibres, dtype = self._wanted[number], self._fibres[number], self._types[number]
        origin = trainer.origin(wanted.name, wanted.rank, fibres)
        numbers = fibres.along(origin.axis)
        zero = zero_number(fibre_length(wanted.shape, origin.axis))
        stretches: list[FibreStretch] = []
        is_exact = True
        for begin, end, place, first in origin.runs():
            stretch = FibreStretch(origin.axis, begin, end, OPEN)
            if place < 0:
                is_padding = end == len(numbers) and begin > 0 and bool((numbers[begin:end] == zero).all())
                stretches.append(replace(stretch, verdict=PADDING if is_padding else OPEN))
                continue
            is_exact &= trainer.fibres[place][dtype].exact
            source = trainer.tensors[place]
            where = _within(stretch, source, origin.of_axis, first, step)
            is_certain = bool(origin.alone[begin:end].all())
            verdict = EQUAL if step == self._step else STALE
            order = self._order.get(source.name, place)
            stretches.append(replace(where, verdict=verdict, of_number=order, is_certain=is_certain))
        cast = "" if is_exact else dtype
        return Arrived(wanted.rank, wanted.name, wanted.dtype, wanted.shape, cast, tuple(stretches))

    def _measured(self, number: int, arrived: Arrived) -> Arrived:
        wanted = self._wanted[number]
        stretches: list[FibreStretch] = []
        values = wanted.read()
        scaled = self._scaled(wanted, values)
        for stretch in arrived.stretches:
            if stretch.verdict != OPEN:
                stretches.append(stretch)
                continue
            axes = (stretch.axis,) if len(arrived.stretches) > 1 or values.ndim < 2 else (0, 1)
            looked = [self._like(stretch, axis, wanted, scaled) for axis in axes]
            best: list[FibreStretch] = max(looked, key=_share_known)
            stretches += best
        named = self._named.get((wanted.name, wanted.shape))
        if named is not None and all(each.verdict == OPEN for each in stretches):
            rows = fibres_of(scaled, ROWS), fibres_of(named.read(), ROWS)
            whole = _within(FibreStretch(ROWS, 0, len(rows[0]), OPEN), named, ROWS, 0, self._step)
            stretches = [_compared(*rows, wanted.dtype, whole)]
        if values.ndim == 2 and all(each.verdict in (OPEN, DIFFERENT) for each in stretches):
            stretches = [*islice(self._merged(wanted, values), 1)] or stretches
        return replace(arrived, stretches=tuple(stretches))

    def _merged(self, wanted: HeldParameter, values: Array) -> Iterator[FibreStretch]:
        """Yield matrices of the trainer to which the product of two beside it was added: an adapter."""
        for base in (each for each in self._trainer.tensors if each.shape == wanted.shape):
            for left, right in self._beside(base):
                a, b, plain = wide(left.read()), wide(right.read()), wide(base.read())
                made, off = a @ b, wide(values) - plain
                factor = float((off * made).sum() / max((made**2).sum(), 1e-300))
                unit = max(unit_of(wanted.dtype), unit_of(base.dtype))
                sums = (sum_error(a.shape[1], 1.0) + 4) * abs(factor) * (np.abs(a) @ np.abs(b))
                if (np.abs(off - factor * made) <= unit * (2 * np.abs(plain) + sums)).all():
                    how = f"plus {factor:.4g} times {left.name} @ {right.name}: may be right, or not"
                    whole = FibreStretch(ROWS, 0, len(plain), OPEN, how=how, plus=(left.name, right.name))
                    yield _within(whole, base, ROWS, 0, self._step)

    def _beside(self, base: HeldParameter) -> Iterator[tuple[HeldParameter, HeldParameter]]:
        owner = base.name.rsplit(".", 2)[0] + "."
        near = [
            each for each in self._trainer.tensors if each.name.startswith(owner) and len(each.shape) == 2
        ]
        for left, right in permutations(near, 2):
            rank = left.shape[1]
            is_product = (left.shape[0], *right.shape) == (base.shape[0], rank, base.shape[1])
            if is_product and 2 * rank <= min(base.shape):
                yield left, right

    def _scaled(self, wanted: HeldParameter, values: Array) -> Array:
        """Return the elements of a quantised tensor times its scale, which is a tensor of the same module."""
        if wanted.dtype not in _QUANTISED:
            return values
        stem = wanted.name.removesuffix("weight")
        plain = values.astype(np.float32)
        for each in self._wanted:
            is_scale = each.name.startswith((f"{wanted.name}_scale", f"{stem}scale"))
            if is_scale and each.rank == wanted.rank and len(each.shape) <= plain.ndim:
                self._scales[each.rank, each.name] = wanted.name
                scale = each.read().astype(np.float32)
                scale = scale.reshape(scale.shape or (1,))
                if scale.size == 1 or scale.ndim < plain.ndim:
                    scale = scale.reshape(*scale.shape, *[1] * (plain.ndim - scale.ndim))
                for axis, (length, count) in enumerate(zip(plain.shape, scale.shape, strict=True)):
                    scale = np.repeat(scale, -(-length // count), axis)
                return plain * scale[tuple(map(slice, plain.shape))]
        return plain

    def _like(
        self, stretch: FibreStretch, axis: int, wanted: HeldParameter, scaled: Array
    ) -> list[FibreStretch]:
        own = fibres_of(scaled, axis)
        whole = stretch if axis == stretch.axis else replace(stretch, axis=axis, begin=0, end=len(own))
        own = own[whole.begin : whole.end]
        parts: list[FibreStretch] = []
        for like in self._trainer.nearest(own):
            source = self._trainer.tensors[like.tensor]
            theirs = fibres_of(source.read(), like.axis)[like.first + like.begin : like.first + like.end]
            ours = own[like.begin : like.end]
            begin, end = whole.begin + like.begin, whole.begin + like.end
            told = _compared(ours, theirs, wanted.dtype, replace(whole, begin=begin, end=end))
            if not _is_alike(told, is_vector=scaled.ndim < 2) or abs(correlation(ours, theirs)) < _ALIKE:
                continue
            last = parts[-1].end if parts else whole.begin
            if begin > last:
                parts.append(replace(whole, begin=last, end=begin))
            parts.append(_within(told, source, like.axis, like.first + like.begin, self._step))
        last = parts[-1].end if parts else whole.begin
        return [*parts, replace(whole, begin=last)] if last < whole.end else parts


def _is_alike(told: FibreStretch, *, is_vector: bool) -> bool:
    return not is_vector or told.relative < _NEAR or bool(told.how)


def _within(stretch: FibreStretch, source: HeldParameter, axis: int, first: int, step: int) -> FibreStretch:
    return replace(
        stretch,
        of=source.name,
        of_rank=source.rank,
        of_axis=axis,
        first=first,
        of_length=fibre_count(source.shape, axis),
        step=step,
    )


def _share_known(stretches: list[FibreStretch]) -> float:
    return sum(each.length for each in stretches if each.verdict != OPEN) / stretches[-1].end


def _compared(ours: Array, theirs: Array, dtype: str, stretch: FibreStretch) -> FibreStretch:
    limit = _QUANTISED.get(dtype)
    told = measured(ours, theirs, "float32" if limit else dtype, limit or SAME)
    stretch = replace(stretch, verdict=DIFFERENT, **told)
    if limit is None:
        return stretch
    x, y = ours.astype(np.float64), theirs.astype(np.float64)
    # What is below the smallest normal number is rounded to multiples of one number.
    off = np.abs(x - y) > limit * np.abs(y) + limit * np.abs(y).max() * 2.0**-10
    if not off.any():
        return replace(stretch, verdict=EQUAL, unequal=0, how=f"quantised to {dtype} with its scale")
    return replace(stretch, unequal=int(off.sum()))


def _with_stale(current: Arrived, other: Arrived) -> Arrived:
    """Return a tensor with what is not there filled with what is in another step."""
    # Of small updates, much is the same in both steps after it was rounded.
    if not other.of_verdict(OPEN) or not current.of_verdict(EQUAL):
        return other if other.of_verdict(STALE) else current
    if current.stretches[0].axis != other.stretches[0].axis:
        return current
    stretches: list[FibreStretch] = []
    for stretch in current.stretches:
        parts = [each.within(stretch.begin, stretch.end) for each in other.stretches]
        stretches += [each for each in parts if each.length > 0] if stretch.verdict == OPEN else [stretch]
    return replace(current, stretches=tuple(stretches))


QUESTION = Question(compare_weights, ("compare-weights train.zarr rollout.zarr",))
