"""Which fibre of the trainer each fibre of the rollout is, nearly is, or should have been.

Fibres of equal values may stand in the wrong place: other layers, experts and shards of the same program show
it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ingest.questions.rollout.fibres import (
    COLUMNS,
    DIFFERENT,
    EQUAL,
    MISPLACED,
    OPEN,
    ROWS,
    SHORTEST,
    STALE,
    Array,
    Arrived,
    FibreIndex,
    Fibres,
    FibreStretch,
    HeldParameter,
    fibres_of,
    rounded,
    sources_text,
)
from workers.model import grouped

#: Numbers by which fibres that are nearly equal are found, and fibres of a stretch that are looked for.
_PROJECTIONS, _SAMPLES = 8, 64
#: Stretches that correlate less have nothing in common: that of a thousand unrelated elements is 0.03.
_ALIKE = 0.5
#: An element that differs by less than this share is a factor or an offset away.
SAME = 1e-2


class Likeness(NamedTuple):
    """Where in the trainer a stretch may come from."""

    tensor: int
    axis: int
    first: int
    """The fibre of the trainer at the first fibre of the stretch; may be negative."""
    begin: int
    end: int


def _distances(wanted: Array, points: Array) -> Array:
    """Return by wanted point the distance of the nearest point, and its place."""
    nearest = np.array([np.abs(points - point).sum(axis=1).argmin() for point in wanted])
    return np.stack([np.abs(points[nearest] - wanted).sum(axis=1), nearest], axis=1)


@lru_cache(maxsize=8)
def _signs(length: int) -> Array:
    return np.random.default_rng(length).choice(np.array([-1.0, 1.0], np.float32), (length, _PROJECTIONS))


def _projected(fibres: Array) -> Array:
    with np.errstate(all="ignore"):
        values = np.nan_to_num(fibres.astype(np.float32), posinf=0.0, neginf=0.0)
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        return np.asarray(values @ _signs(fibres.shape[1]) / np.where(norms > 0, norms, 1.0))


def correlation(a: Array, b: Array) -> float:
    """Return the cosine of the angle between two arrays."""
    x, y = (np.nan_to_num(each.astype(np.float64)).reshape(-1) for each in (a, b))
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norm if norm else 0.0


def measured(rollout: Array, trainer: Array, dtype: str, same: float = SAME) -> dict[str, Any]:
    """Return the fields of `FibreStretch` that say how it differs from the trainer, rounded to its type.

    `same` is the relative error up to which one factor, or one offset, explains all elements.
    """
    with np.errstate(all="ignore"):
        expected = rounded(trainer, dtype).astype(np.float64)
        x, y, exact = rollout.astype(np.float64), expected, trainer.astype(np.float64)
        unequal = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        relative = float(np.linalg.norm(x - y) / np.linalg.norm(y)) if y.any() else float(np.inf)
        return {
            "unequal": int(unequal.sum()),
            "relative": relative,
            "largest": float(np.abs(x - y).max(initial=0.0)),
            "how": _how(x, y, exact, dtype) or _moved(x, y, same),
        }


def _how(x: Array, y: Array, exact: Array, dtype: str) -> str:
    if not np.isfinite(x).all() and np.isfinite(y).all():
        return f"{int((~np.isfinite(x)).sum())} elements are NaN or infinite"
    if (x == x.flat[0]).all() and x.size > 1:
        return f"all {x.flat[0] + 0.0:.6g}"
    return _rounded_otherwise(x, exact, dtype)


def _rounded_otherwise(x: Array, exact: Array, dtype: str) -> str:
    """Return by which other rounding the values come from the exact ones; "" if by none that is known."""
    toward_zero = np.abs(x) <= np.abs(exact)
    step = np.spacing(np.abs(rounded(exact, "float32"))) * 2.0 ** _DROPPED.get(dtype, 0)
    if dtype in _DROPPED and toward_zero.all() and (np.abs(x - exact) <= step).all():
        return f"rounded toward zero to {dtype}, and not to nearest"
    for narrow in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
        if np.array_equal(rounded(rounded(exact, narrow).astype(np.float64), dtype).astype(np.float64), x):
            return f"rounded to {narrow} on the way"
    return ""


def _moved(x: Array, y: Array, same: float) -> str:
    """Return by which factor or offset values are away; "" if they are only similar."""
    scale = float(np.abs(y).max())
    large = np.abs(y) > scale / 16
    ratios = x[large] / y[large]
    factor = float(np.median(ratios))
    if abs(factor - 1) > same and (np.abs(ratios - factor) <= same * abs(factor)).all():
        return f"{factor:.4g} times the trainer's"
    offset = float(np.median(x - y))
    if abs(offset) > same * scale and (np.abs(x - y - offset) <= same * abs(offset)).all():
        return f"{offset:+.4g} in each element"
    return "unrelated values" if abs(correlation(x, y)) < _ALIKE else ""


#: The bits of the fraction of float32 that a narrower type drops.
_DROPPED = {"bfloat16": 16, "float16": 13}


Places: TypeAlias = npt.NDArray[np.int64]
#: Fibres with more equals in the trainer than this are taken for the first of them.
_MOST_EQUAL = 16


@dataclass(slots=True, eq=False)
class FibreOrigin:
    """Where the fibres of a tensor of the rollout come from, along the axis by which most are found."""

    axis: int
    of_axis: int
    """The axis of the trainer's tensors: another one if they were transposed."""
    tensor: Places
    """By fibre the trainer's tensor, by place; -1: not found."""
    fibre: Places
    alone: npt.NDArray[np.bool_]
    """By fibre, whether no other one of the trainer is equal: then its place is certain."""

    def runs(self) -> list[tuple[int, int, int, int]]:
        """Return stretches of fibres: first, behind the last, the trainer's tensor (-1), its first fibre."""
        follows = (np.diff(self.tensor) == 0) & ((np.diff(self.fibre) == 1) | (self.tensor[1:] < 0))
        begins = np.flatnonzero(np.concatenate([[True], ~follows]))
        ends = [*begins[1:].tolist(), len(self.tensor)]
        return [
            (begin, end, int(self.tensor[begin]), int(self.fibre[begin]))
            for begin, end in zip(begins.tolist(), ends, strict=True)
        ]


class Trainer:
    """The tensors of one step of the trainer, rounded to the types of the rollout, and an index of each."""

    def __init__(self, parameters: Sequence[HeldParameter], dtypes: set[str]) -> None:
        """Read the tensors. Replicas of a tensor on several ranks count once.

        Raises:
            DamagedStore: elements are damaged.
        """
        unique: dict[tuple[str, bytes], tuple[HeldParameter, dict[str, Fibres]]] = {}
        for each in parameters:
            fibres = each.fibres(dtypes | {each.dtype})
            unique.setdefault((each.name, fibres[each.dtype].rows.tobytes()), (each, fibres))
        self.tensors = [each for each, _ in unique.values()]
        self.fibres = [fibres for _, fibres in unique.values()]
        self._indexes = {dtype: FibreIndex([each[dtype] for each in self.fibres]) for dtype in dtypes}
        self._whole = grouped(
            ((dtype, of_tensor[dtype].rows.tobytes()), place)
            for place, of_tensor in enumerate(self.fibres)
            for dtype in dtypes
        )
        self._taken: dict[tuple[int, str, bytes], int] = defaultdict(int)

    def origin(self, name: str, rank: int, fibres: Fibres) -> FibreOrigin:
        """Return where a tensor of the rollout comes from."""
        count, content = len(fibres.rows), fibres.rows.tobytes()
        if same := self._whole.get((fibres.dtype, content)):
            # Equal tensors, such as norms of ones, follow one another in the same order, unless names tell.
            taken = min(self._taken[rank, fibres.dtype, content], len(same) - 1)
            self._taken[rank, fibres.dtype, content] += 1
            place = next((place for place in same if self.tensors[place].name == name), same[taken])
            is_alone = np.full(count, len(same) == 1)
            return FibreOrigin(ROWS, ROWS, np.full(count, place), np.arange(count), is_alone)
        found = [
            self._along(axis, of_axis, fibres) for axis in (ROWS, COLUMNS) for of_axis in (ROWS, COLUMNS)
        ]
        return max(found, key=lambda each: float((each.tensor >= 0).mean()) if len(each.tensor) else -1.0)

    def _along(self, axis: int, of_axis: int, fibres: Fibres) -> FibreOrigin:
        index = self._indexes[fibres.dtype]
        begins, ends = index.places(fibres.along(axis))
        count = len(begins)
        offsets = np.arange(_MOST_EQUAL)[:, None]
        entries = np.minimum(begins + offsets, len(index.tensor) - 1)
        is_one = (begins + offsets < ends) & (index.axis[entries] == of_axis)
        alone = is_one.sum(axis=0) == 1
        first = entries[is_one.argmax(axis=0), np.arange(count)]
        votes = np.bincount(index.tensor[first[alone]], minlength=len(self.tensors))
        shifts = np.zeros(len(self.tensors), np.int64)
        for tensor in np.flatnonzero(votes):
            of_tensor = alone & (index.tensor[first] == tensor)
            moved, counts = np.unique(
                index.fibre[first[of_tensor]] - np.flatnonzero(of_tensor), return_counts=True
            )
            shifts[tensor] = moved[counts.argmax()]
        # Of several equal fibres, the one that most others of the tensor speak for, best in line with them.
        in_line = index.fibre[entries] - np.arange(count) == shifts[index.tensor[entries]]
        scores = np.where(is_one, votes[index.tensor[entries]] + 0.5 * in_line, -1.0)
        best = entries[scores.argmax(axis=0), np.arange(count)]
        is_found = is_one.any(axis=0)
        return FibreOrigin(
            axis,
            of_axis,
            np.where(is_found, index.tensor[best], -1),
            np.where(is_found, index.fibre[best], -1),
            alone,
        )

    @cached_property
    def _projections(self) -> dict[int, list[tuple[int, int, Array]]]:
        """By length of fibres the tensor, its axis and the projections of its fibres."""
        known: dict[int, list[tuple[int, int, Array]]] = {}
        for place, each in enumerate(self.tensors):
            values = each.read()
            for axis in (ROWS, COLUMNS)[: max(values.ndim, 1)]:
                fibres = fibres_of(values, axis)
                known.setdefault(fibres.shape[1], []).append((place, axis, _projected(fibres)))
        return known

    def nearest(self, stretch: Array) -> list[Likeness]:
        """Return what of the trainer a stretch of fibres (fibre, element) is similar to, in their order."""
        places = np.unique(np.linspace(0, len(stretch) - 1, min(len(stretch), _SAMPLES)).astype(int))
        known = self._projections.get(stretch.shape[1], [])
        if not known or stretch.shape[1] < SHORTEST:
            return []
        wanted = _projected(stretch[places])
        distances = np.stack([_distances(wanted, points) for _, _, points in known])
        best = distances[..., 0].argmin(axis=0)
        votes: dict[Likeness, list[int]] = {}
        for column, (place, of) in enumerate(zip(places.tolist(), best.tolist(), strict=True)):
            tensor, axis, points = known[of]
            first = int(distances[of, column, 1]) - place
            votes.setdefault(Likeness(tensor, axis, first, -first, len(points) - first), []).append(place)
        enough = [each for each in votes.items() if len(each[1]) > 1 or len(places) == 1]
        found: list[Likeness] = []
        for number, (likeness, of_votes) in enumerate(enough):
            end = min(likeness.end, enough[number + 1][1][0] if number + 1 < len(enough) else len(stretch))
            begin = max(likeness.begin, found[-1].end if found else 0)
            if begin <= of_votes[0] and of_votes[-1] < end:
                if number + 1 < len(enough):  # the next may begin before the first of it that was looked for
                    end = max(min(end, enough[number + 1][0].begin), of_votes[-1] + 1)
                found.append(likeness._replace(begin=begin, end=end))
        return found


_Value = TypeVar("_Value", bound=Hashable)
_NUMBER = re.compile(r"(?:(?<=[._/])|^)\d+(?=[._/]|$)")
_ORDER = "not in the trainer's order: values do not tell whether it is right"
_SQUARE = "square, and nothing else is transposed: values do not tell whether it should be"


def misplaced(tensors: Sequence[Arrived]) -> list[Arrived]:
    """Return tensors with what is not where most others of their kind are, and with what stays open."""
    told = _odd_numbers(tensors) | _odd_shards(tensors)
    told |= {place: text for place, text in _odd_orders(tensors).items() if place not in told}
    odd = {number for number, _ in told}
    is_transposed = any(each.is_transposed and not _is_square(each) for each in tensors)
    return [
        replace(
            each,
            stretches=tuple(
                _judged(stretch, told.get((number, place), ""))
                for place, stretch in enumerate(each.stretches)
            ),
            note="" if number in odd else _note(each, is_transposed=is_transposed),
        )
        for number, each in enumerate(tensors)
    ]


def _judged(stretch: FibreStretch, problem: str) -> FibreStretch:
    verdict = DIFFERENT if stretch.verdict == OPEN else MISPLACED
    return replace(stretch, verdict=verdict, how=problem) if problem else stretch


def _is_square(tensor: Arrived) -> bool:
    return tensor.shape[-1] == tensor.shape[-2]


def _note(tensor: Arrived, *, is_transposed: bool) -> str:
    if tensor.is_transposed and _is_square(tensor) and not is_transposed:
        return _SQUARE
    # Ranks of the trainer hold parts of a slice, one behind another.
    places = [(stretch.of_number, stretch.first, stretch.of_rank) for _, stretch in _placed(tensor)]
    ends: dict[tuple[str, int], int] = {}
    has_gap = False
    for _, each in _placed(tensor):
        has_gap |= ends.get((each.of, each.of_rank), each.first) != each.first
        ends[each.of, each.of_rank] = each.first + each.length
    return _ORDER if has_gap or places != sorted(places) else ""


def _placed(tensor: Arrived) -> list[tuple[int, FibreStretch]]:
    """Return the stretches whose place in the trainer is certain, with their numbers."""
    return [
        (place, stretch)
        for place, stretch in enumerate(tensor.stretches)
        if stretch.verdict in (EQUAL, STALE) and stretch.of and stretch.is_certain
    ]


def _pattern(name: str) -> str:
    return _NUMBER.sub("*", name)


def _majority(values: Iterable[_Value]) -> _Value | None:
    counts = Counter(values)
    return next((value for value, count in counts.items() if count > 1 and 2 * count > counts.total()), None)


class _NameNumber(NamedTuple):
    """A number in the name of a trainer's parameter by one in the rollout: a layer or an expert."""

    place: tuple[int, int]
    kind: tuple[str, int, str]
    """The patterns of both names, and which number of the first."""
    of: int
    candidates: tuple[int, ...]
    """The numbers in the rollout's name, and last its place among pieces of the same pattern."""
    word: str
    ranks: tuple[int, int]


def _steps(tensors: Sequence[Arrived]) -> Iterator[_NameNumber]:
    for number, tensor in enumerate(tensors):
        own = tuple(map(int, _NUMBER.findall(tensor.name)))
        order: dict[str, dict[str, int]] = defaultdict(dict)
        for place, stretch in _placed(tensor):
            of_pattern = order[_pattern(stretch.of)]
            slot = of_pattern.setdefault(stretch.of, len(of_pattern))
            for position, match in enumerate(_NUMBER.finditer(stretch.of)):
                word = re.split(r"[._/]", stretch.of[: match.start()].rstrip("._/"))[-1]
                kind = (_pattern(stretch.of), position, _pattern(tensor.name))
                ranks = tensor.rank, stretch.of_rank
                yield _NameNumber((number, place), kind, int(match[0]), (*own, slot), word, ranks)


def _odd_numbers(tensors: Sequence[Arrived]) -> dict[tuple[int, int], str]:
    """Return stretches that come from another layer or expert than most at the same place."""
    pools: dict[tuple[str, tuple[int, int]], list[tuple[_NameNumber, int, tuple[int, ...]]]]
    pools = defaultdict(list)
    for steps in grouped((step.kind, step) for step in _steps(tensors)).values():
        # The number of the rollout from which most are equally far, rank by rank.
        which = max(range(len(steps[0].candidates)), key=lambda place: _equally_far(steps, place))
        for step in steps:
            others = step.candidates[:which] + step.candidates[which + 1 :]
            pools[step.word, step.ranks].append((step, step.candidates[which], others))
    told: dict[tuple[int, int], str] = {}
    for (word, _), pool in pools.items():
        usual = _majority(step.of - own for step, own, _ in pool)
        for step, own, others in pool if usual is not None else ():
            belongs = own + (usual or 0)
            if step.of == belongs:
                continue
            moved = [each for each, *numbers in pool if numbers == [own, others]]
            if "expert" not in word or not _is_permutation(moved):
                told[step.place] = f"of {word} {step.of}, where {word} {belongs} belongs"
    return told


def _is_permutation(moved: Sequence[_NameNumber]) -> bool:
    """Return whether all parameters of an expert moved: right if the router, or a map, did, too."""
    return len({each.kind[2] for each in moved}) > 1 and len({each.of for each in moved}) == 1


def _equally_far(steps: Iterable[_NameNumber], place: int) -> int:
    most: dict[tuple[int, int], int] = {}
    counts = Counter((step.ranks, step.of - step.candidates[place]) for step in steps)
    for (ranks, _), count in counts.items():
        most[ranks] = max(most.get(ranks, 0), count)
    return sum(most.values())


def _odd_shards(tensors: Sequence[Arrived]) -> dict[tuple[int, int], str]:
    """Return slices that begin elsewhere than most slices of the same share on their rank do.

    What lies between elements that differ is not a slice.
    """
    pools: dict[tuple[int, Fraction], list[tuple[list[tuple[int, int]], Fraction]]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        if any(stretch.verdict in (OPEN, DIFFERENT) for stretch in tensor.stretches):
            continue
        slices = grouped(
            ((stretch.of, stretch.of_rank), (place, stretch)) for place, stretch in _placed(tensor)
        )
        for parts in slices.values():
            first = min(part.first for _, part in parts)
            length = max(part.first + part.length for _, part in parts) - first
            whole = parts[0][1].of_length
            if length < whole and length == sum(part.length for _, part in parts):
                places = [(number, place) for place, _ in parts]
                pools[tensor.rank, Fraction(length, whole)].append((places, Fraction(first, whole)))
    told: dict[tuple[int, int], str] = {}
    for (_, share), pool in pools.items():
        most = _majority(begin for _, begin in pool)
        for places, begin in pool:
            if most is not None and begin != most:
                shards = f"shard {float(begin / share):g}", f"shard {float(most / share):g}"
                told |= dict.fromkeys(
                    places, f"{shards[0]}, where other tensors of the rank hold {shards[1]}"
                )
    return told


def _odd_orders(tensors: Sequence[Arrived]) -> dict[tuple[int, int], str]:
    """Return tensors that are put together in another way than most of the same name in other layers."""
    siblings = grouped(
        ((tensor.rank, _pattern(tensor.name), tensor.shape), number) for number, tensor in enumerate(tensors)
    )
    told: dict[tuple[int, int], str] = {}
    for numbers in siblings.values():
        orders = {number: _order(tensors[number]) for number in numbers if _is_certain(tensors[number])}
        usual = _majority(orders.values())
        if usual is None:
            continue
        other = tensors[next(each for each in orders if orders[each] == usual)]
        like = f"not put together as {other.name}: {sources_text(other.stretches)}"
        like += ", transposed" if other.is_transposed else ""
        for number in numbers:
            is_odd = orders.get(number, usual) != usual
            told |= {
                (number, place): like
                for place, stretch in enumerate(tensors[number].stretches)
                if is_odd or (stretch.verdict == OPEN and not stretch.plus)
            }
    return told


def _is_certain(tensor: Arrived) -> bool:
    return all(
        each.is_certain and each.verdict in (EQUAL, STALE) and not each.how for each in tensor.stretches
    )


def _order(tensor: Arrived) -> Hashable:
    first_rank = min(each.of_rank for each in tensor.stretches)
    return tuple(
        (
            each.axis,
            each.of_axis,
            each.begin,
            each.end,
            _pattern(each.of),
            each.first,
            each.of_rank - first_rank,
        )
        for each in tensor.stretches
    )
