"""The kinds of rules that look at a rank over several steps: a tensor against itself, and a step of training.

To add a kind, add a function here and a model in `workers.rules.schema`.

The modified z-score is that of Iglewicz and Hoaglin (1993, "How to detect and handle outliers", section 3.3),
0.6745 (x - median) / MAD, here of log2 of the statistic: norms vary by factors, and a norm that halves is as
far off as one that doubles.

Of training: an optimizer changes what has a gradient; a gradient belongs to one step; dropout and batch
normalisation act while gradients are computed; each step has a batch of its own. This follows from what is
recorded of a parameter, its gradient and its module in steps in a row, and needs no threshold. Names pair
what belongs together; where nothing pairs, these rules say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.findings.history import MAX_HISTORY_NBYTES, StepValues, StepWindow, TrainedParameter, Values
from ingest.units import human_bytes
from workers.errors import UsageError
from workers.model import grouped
from workers.rules.values import Rule
from workers.store.consolidated.blocks import TensorKey
from workers.store.sketch_columns import HINT

#: To normal quantiles: the MAD of a normal distribution is 0.6745 of its standard deviation.
_Z = 0.6745
#: Smaller norms are replaced by this one, so that their logarithm is finite.
_TINY = 2.0**-1022


@dataclass(frozen=True, slots=True)
class TensorHits:
    """The tensors for which a threshold is exceeded, before the selector of the rule is applied."""

    mask: npt.NDArray[np.bool_]
    """(rank, tensor)."""
    values: Values
    """(rank, tensor)."""
    threshold: float
    describe: Callable[[int, int], str]
    """Returns a sentence about a tensor, by its places: rank, tensor."""
    cause: str = ""
    level: str = "open"
    """How certain the cause is: `shown`, `likely` or `open`."""
    since: int | None = None
    """The step in which it began, if that is not the step of the window."""
    compared: npt.NDArray[np.bool_] | None = None
    """(rank, tensor): what could be compared, of which a rule may ask that a share is a hit."""


Evaluator: TypeAlias = Callable[[Rule, StepWindow], Iterator[TensorHits]]


@dataclass(frozen=True, slots=True)
class _SeriesKind:
    evaluate: Evaluator
    steps_before: Callable[[Rule], int]
    reads: Callable[[TensorKey], bool] = lambda _: False
    """Whether a rule needs a tensor that its selector does not choose."""
    needs_histograms: bool = False


def _unchanged(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    steps = int(rule["steps"])
    _refuse_if_cut(window, steps - 1)
    elements = window.value("count")
    if len(window.before) < steps - 1:
        mask = np.zeros(elements.shape, bool)
    else:
        now = window.digest(window.now)
        mask = now.any(axis=2) & (elements >= rule["elements_ge"])
        for step in window.before[-(steps - 1) :]:
            mask &= (window.digest(step) == now).all(axis=2)
    values = np.full(elements.shape, float(steps))
    yield TensorHits(mask, values, float(steps), lambda _rank, _tensor: f"the same in {steps} steps in a row")


def _change(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    name = rule["statistic"]
    now, elements = window.value(name), window.value("count")
    past = window.values_before(name, int(rule["history"]) + 1)
    before = past[-1] if len(past) else np.full(now.shape, np.nan)
    ratio = np.abs(now - before) / (np.abs(before) + rule["epsilon"])
    ratios = np.abs(np.diff(past, axis=0)) / (np.abs(past[:-1]) + rule["epsilon"])
    usual = np.nanmax(ratios, axis=0, initial=0.0)
    mask = (ratio > rule["ratio_gt"]) & (ratio > rule["times_gt"] * usual)
    mask &= (np.isfinite(ratios).sum(axis=0) >= rule["least"]) & (np.abs(before) >= rule["before_ge"])
    mask &= elements >= rule["elements_ge"]

    def describe(rank: int, tensor: int) -> str:
        return (
            f"{name} went from {before[rank, tensor]:.6g} to {now[rank, tensor]:.6g}, "
            f"by {ratio[rank, tensor]:.3g} of what it was"
            + (f", and by at most {usual[rank, tensor]:.3g} in a step before" if len(ratios) else "")
        )

    yield TensorHits(mask, ratio, rule["ratio_gt"], describe)


def _drift(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    """Compare the histograms of two steps by Wasserstein's metric; see `Histogram.cumulative`."""
    now, elements = window.cumulative(window.now), window.value("count")
    if (elements >= rule["elements_ge"]).any() and np.isnan(now).all():
        raise UsageError("no tensor has a histogram", hint=HINT)
    distance = np.full(elements.shape, np.nan)
    if window.before:
        distance = np.abs(now - window.cumulative(window.before[-1])).sum(axis=2, dtype=np.float64)
    mask = (distance > rule["distance_gt"]) & (elements >= rule["elements_ge"])

    def describe(rank: int, tensor: int) -> str:
        moved = distance[rank, tensor]
        return (
            f"magnitudes moved by {moved:.3g} powers of two on average since the step before; "
            f"bounded: they are known to a factor of two, so by {max(moved - 1, 0):.3g} to {moved + 1:.3g}"
        )

    yield TensorHits(mask, distance, rule["distance_gt"], describe)


def _outlier(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    name, above = rule["statistic"], rule["direction"] == "above"
    _refuse_if_cut(window, int(rule["least"]))
    now = window.value(name)
    past = window.values_before(name, int(rule["history"]))
    # Zero is not a scale, as of gradients where all samples are masked.
    past = np.where(past == 0, np.nan, past)
    known = np.isfinite(past).sum(axis=0)
    median, z = _median_and_z(now, past, (known >= rule["least"]) & np.isfinite(now))
    ratio = now / median if above else median / now
    mask = (ratio > rule["ratio_gt"]) & ((z if above else -z) > rule["z_gt"])

    def describe(rank: int, tensor: int) -> str:
        return (
            f"{name} {now[rank, tensor]:.6g} is {ratio[rank, tensor]:.3g} times "
            + ("the" if above else "less than the")
            + f" median {median[rank, tensor]:.6g} of {known[rank, tensor]} steps before, "
            + f"z {z[rank, tensor]:.3g}"
        )

    yield TensorHits(mask, ratio, rule["ratio_gt"], describe, compared=np.isfinite(ratio))


def _refuse_if_cut(window: StepWindow, needed: int) -> None:
    if window.is_cut and len(window.before) < needed:
        raise UsageError(
            f"it needs {needed} steps before, of which {len(window.before)} fit into "
            f"{human_bytes(MAX_HISTORY_NBYTES)}; rules over several steps must choose fewer tensors"
        )


def _median_and_z(now: Values, past: Values, comparable: npt.NDArray[np.bool_]) -> tuple[Values, Values]:
    """Return the median of the past and the modified z-score of now, (rank, tensor); NaN if not comparable.

    Args:
        now: (rank, tensor).
        past: (step, rank, tensor).
        comparable: which tensors to compare: medians of all of them would take most of the time.
    """
    rows, columns = np.nonzero(comparable)
    median, z = np.full(now.shape, np.nan), np.full(now.shape, np.nan)
    if rows.size:
        chosen = past[:, rows, columns]
        logs = np.log2(np.maximum(np.abs(chosen), _TINY))
        logs[~np.isfinite(chosen)] = np.nan
        middle = np.nanmedian(logs, axis=0)
        spread = np.nanmedian(np.abs(logs - middle), axis=0)
        off = np.log2(np.maximum(np.abs(now[rows, columns]), _TINY)) - middle
        median[rows, columns] = np.exp2(middle)
        # If it never varied, any change is beyond its spread; the ratio decides.
        z[rows, columns] = np.where(spread > 0, _Z * off / spread, np.sign(off) * np.inf)
    return median, z


_Bytes: TypeAlias = npt.NDArray[np.uint8]
#: Steps in which something must have been otherwise, so that it counts as a change.
_LEAST = 3
#: The same for the mode of a module, which bytes show.
_MODE_BEFORE = 2
#: Steps before that are looked at for such a change.
_HISTORY = 8
#: Elements that an input must have: smaller ones may be equal by chance.
_ELEMENTS = 16
#: A sum counts if it is at least this share of the sum of magnitudes: then rounding does not decide.
_SIGNIFICANT = 1e-3
#: A gradient this much smaller than the largest may be rounding noise, as that of a bias before a norm.
_NOISE = 1e-5
#: How near to 1 a ratio of sums must be to be 1, but for rounding.
_NEAR = 0.01

#: How near to one another the sizes of batches of one kind are, and the factor of another unit.
_SIMILAR, _OTHER_UNITS = 2.0, 16.0
_ONE_VALUE = "all elements of this input of the model are equal"
_SCALED = "this input of the model is that of all steps before times one factor, as in other units"


def _nowhere(window: StepWindow) -> npt.NDArray[np.bool_]:
    return np.zeros((len(window.now.ranks), window.width), bool)


def _hits(mask: npt.NDArray[np.bool_], cause: str, level: str, since: int, reason: str) -> TensorHits:
    unknown = np.full(mask.shape, np.nan)
    return TensorHits(mask, unknown, np.nan, lambda _rank, _tensor: reason, cause, level, since)


def _is_trained(key: TensorKey) -> bool:
    return key.op_type in ("Parameter", "Gradient") or key.io == "output"


def _moves(window: StepWindow, pairs: Iterable[TrainedParameter]) -> npt.NDArray[np.bool_]:
    found = [~_same(window, pair.parameter, *window.steps[-2:]) for pair in pairs]
    return np.asarray(np.any(found, axis=0))


def _not_updated(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    """Yield parameters that stay the same although the gradient of each step is another one, and not zero.

    If a rank has no parameter that moves, several steps of the dump may be one of the optimizer, in which
    gradients add up: unless sums show that they do not, twice as many steps and one are needed.
    """
    pairs = [pair for pair in window.training.parameters.values() if pair.gradients]
    gradients = [pair.gradients[-1] for pair in pairs]
    least = _NOISE * window.value("l2_norm")[:, gradients].max(axis=1, initial=0)
    if not window.before or not pairs:
        return
    is_clear = _moves(window, pairs) | (_carries(window, 0).sum(axis=0) >= 2)
    found = _nowhere(window)
    for steps, ranks in ((int(rule["steps"]), is_clear), (_passes(rule), ~is_clear)):
        for pair in pairs if len(window.steps) >= steps else ():
            found[:, pair.parameter] |= ranks & _unmoved(window, pair, steps, least)
        low, high = window.value("min"), window.value("max")
        is_uniform = (low == high) & (low != 0)  # as the weight of a norm, whose change rounding may swallow
        found &= (found & ~is_uniform).any(axis=1)[:, None]
        if found.any():
            since = window.steps[1 - steps].number
            reason = f"the same as in step {since}, although its gradient is not zero: no update reaches it"
            yield _hits(found, "update does not happen", _level(window), since, reason)
            found = _nowhere(window)


def _passes(rule: Rule) -> int:
    """Return in how many steps a parameter must be the same if each may be a part of a batch."""
    return 2 * int(rule["steps"]) + 1


def _unmoved(window: StepWindow, pair: TrainedParameter, steps: int, least: Values) -> npt.NDArray[np.bool_]:
    chosen = window.steps[-steps:]
    gradient = pair.gradients[-1]
    mask = np.ones(len(window.now.ranks), bool)
    for step, later in pairwise(chosen):
        norm = window.value("l2_norm", step)[:, gradient]
        mask &= _same(window, pair.parameter, step, later) & (norm > least) & np.isfinite(norm)
        mask &= (later is window.now) | ~_same(window, gradient, step, later)
    return mask


def _lost_gradient(
    window: StepWindow, pair: TrainedParameter, steps: Sequence[StepValues], absent: int
) -> npt.NDArray[np.bool_]:
    had = np.array([(window.row(step)[:, list(pair.gradients)] >= 0).any(axis=1) for step in steps])
    ran = np.array([window.row(step)[:, pair.outputs[0]] >= 0 for step in steps[-absent:]])
    return np.asarray(had[:-absent].all(axis=0) & ~had[-absent:].any(axis=0) & ran.all(axis=0))


def _no_gradient(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    """Yield parameters whose module runs, that had a gradient in all steps up to one and in none since.

    And those whose gradient is zero in all steps, although what their module reads is not.
    """
    yield from _zero_gradients(window)
    absent, marked = int(rule["steps"]), _nowhere(window)
    steps = [step for step in window.steps if step is window.now or _has_gradients(window, step).all()]
    if len(steps) < absent + _LEAST or not _has_gradients(window, window.now).all():
        return
    cut, unused, lost = _nowhere(window), _nowhere(window), {}
    for name, pair in window.training.parameters.items():
        if pair.gradients and pair.outputs:
            ranks = _lost_gradient(window, pair, steps, absent)
            above = window.row(window.now)[:, list(pair.output_gradients)] >= 0
            if pair.output_gradients and not above.any():
                lost[name] = ranks
            else:
                marked[:, pair.parameter] |= ranks
    for module in {_outermost(window, name, lost) for name in lost}:
        ranks = np.logical_and.reduce([lost[name] for name in lost if name.startswith(f"{module}.")])
        for (_, path), (_, outputs) in window.training.modules.items():
            if path == module and outputs:
                is_learnt = _is_read_by_learner(window, path, outputs[0])
                cut[:, outputs[0]] |= ranks & is_learnt
                unused[:, outputs[0]] |= ranks & ~is_learnt
    since = steps[-absent].number
    reason = f"no gradient since step {since}, although its module runs: it had one in each step before"
    yield _hits(marked, "no gradient", "shown", since, reason)
    reason = (
        f"it gets no gradient since step {since}, and a module that reads the same bytes does: it is cut off"
    )
    yield _hits(cut, "no gradient", "shown", since, reason)
    reason = f"it gets no gradient since step {since}: what reads it does not use it any more, or cuts it off"
    yield _hits(unused, "", "open", since, reason)


def _is_read_by_learner(window: StepWindow, path: str, output: int) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(window.now.ranks), bool)
    for (_, reader), (inputs, _) in window.training.modules.items():
        above = window.training.gradients.get(f"{reader}.output", ())
        if above and not reader.startswith(f"{path}.") and not path.startswith(f"{reader}."):
            has_gradient = (window.row(window.now)[:, list(above)] >= 0).any(axis=1)
            for place in inputs:
                is_there = window.row(window.now)[:, place] >= 0
                found |= has_gradient & is_there & _is_same(window, window.now, output, place)
    return found


def _zero_gradients(window: StepWindow) -> Iterator[TensorHits]:
    """Yield parameters that never get a gradient other than zero, of modules that read something else.

    Only while the optimizer moves any: a factor that stays at zero keeps the gradient of the other at zero.
    """
    if len(window.steps) <= _LEAST:
        return
    read = {path: places[0] for (_, path), (places, _) in window.training.modules.items() if places}
    found, pairs = _nowhere(window), window.training.parameters
    norms = np.array([window.value("l2_norm", step) for step in window.steps])
    gradients = [pair.gradients[-1] for pair in pairs.values() if pair.gradients]
    is_trained = (norms[:, :, gradients] > 0).any(axis=2).all(axis=0)
    is_trained &= _moves(window, pairs.values())
    for name, pair in pairs.items():
        path = name.rpartition(".")[0]
        if pair.gradients and path in read:
            given = (norms[:, :, read[path]] > 0).all(axis=0)
            found[:, pair.parameter] |= (
                (norms[:, :, pair.gradients] == 0).all(axis=(0, 2)) & given & is_trained
            )
    since = window.steps[0].number
    reason = f"its gradient is zero in all {len(norms)} steps since {since}, and what its module reads is not"
    yield _hits(found, "no gradient", _level(window), since, reason)


def _outermost(window: StepWindow, parameter: str, lost: Mapping[str, Any]) -> str:
    parts = parameter.split(".")[:-1]
    trained = [name for name, pair in window.training.parameters.items() if pair.gradients]
    for length in range(1, len(parts)):
        path = ".".join(parts[:length])
        if all(name in lost for name in trained if name.startswith(f"{path}.")):
            return path
    return ".".join(parts)


def _accumulated(_: Rule, window: StepWindow) -> Iterator[TensorHits]:
    """Yield gradients that hold those of the step before, although the optimizer has used these.

    The sum of the gradient of a bias is that of the gradient of the output of its module, in the same step.
    Where it is that and the sum of the step before, in two modules or more, the gradients add up.
    """
    if not window.before:
        return
    carries = _carries(window, 1)
    marked, before = _nowhere(window), window.before[-1]
    for (name, pair), ranks in zip(window.training.parameters.items(), carries, strict=True):
        if ranks.any():
            moved = ~_same(window, pair.parameter, before, window.now) & (carries.sum(axis=0) >= 2)
            for parameter in (name, f"{name.removesuffix('bias')}weight"):
                known = window.training.parameters.get(parameter)
                if known is not None and known.gradients:
                    marked[:, known.gradients[-1]] |= ranks & moved
    reason = (
        f"the gradient holds that of step {before.number}, although the optimizer has used it: the sums of "
        "the gradients of biases and outputs show it; they are not set to zero between steps"
    )
    yield _hits(marked, "gradients add up over steps", "shown", window.now.number, reason)


def _carries(window: StepWindow, share: int) -> npt.NDArray[np.bool_]:
    """Return (parameter, rank): the gradient holds this share, 0 or 1, of that of the step before.

    All False on a rank where this does not hold of nine tenths of what can be tested.
    """
    parameters, ranks = window.training.parameters, len(window.now.ranks)
    carried = np.full((2, len(parameters), ranks), np.nan)
    if parameters:
        sums_before, sums = (
            window.value("mean", step) * window.value("count", step) for step in window.steps[-2:]
        )
        spread = window.value("l2_norm") * np.sqrt(window.value("count"))
        for number, (name, pair) in enumerate(parameters.items()):
            if name.endswith(".bias") and pair.gradients and pair.output_gradients:
                outputs = list(pair.output_gradients)
                expected = np.nansum(sums[:, outputs], axis=1)
                least = _SIGNIFICANT * np.nansum(spread[:, outputs], axis=1)
                last = _of_last(sums_before, pair.gradients)
                own = _of_last(sums, pair.gradients)
                for kind, by_rank in enumerate((expected, np.full(ranks, expected.mean()))):
                    carried[kind, number] = np.where(
                        (np.abs(last) > least) & (least > 0), (own - by_rank) / last, np.nan
                    )
    holds = np.abs(carried - share) < _NEAR
    clear = holds.sum(axis=1) >= 0.9 * np.isfinite(carried).sum(axis=1)
    result: npt.NDArray[np.bool_] = (holds & clear[:, None]).any(axis=0)
    return result


def _of_last(values: Values, places: Sequence[int]) -> Values:
    last = np.full(len(values), np.nan)
    for place in places:
        last = np.where(np.isfinite(values[:, place]), values[:, place], last)
    return last


def _has_mode(key: TensorKey) -> bool:
    kind = key.op_type.lower()
    return (
        kind == "gradient" or "drop" in kind or "norm" in kind or key.op_name.endswith("num_batches_tracked")
    )


def _mode(_: Rule, window: StepWindow) -> Iterator[TensorHits]:
    trained = [step for step in window.steps if _has_gradients(window, step).all()]
    if len(trained) <= _MODE_BEFORE or trained[-1] is not window.now:
        return
    dropped = _nowhere(window)
    nan_count = window.value("nan_count")
    for (kind, _path), (inputs, outputs) in window.training.modules.items():
        if "drop" in kind.lower() and inputs and outputs:
            calls = list(zip(inputs, outputs, strict=False))
            same = [
                np.logical_and.reduce([_is_same(window, step, *call) for call in calls]) for step in trained
            ]
            # NaN stays NaN whether it is dropped or not.
            dropped[:, outputs[0]] |= _changed(same) & ~(nan_count[:, list(inputs)] > 0).any(axis=1)
    now = window.now.number
    yield _hits(
        dropped,
        "mode changed",
        _level(window),
        now,
        f"dropout acts otherwise since step {now} (training or evaluation): its output is its input, "
        "or no longer is, as it was in all steps before",
    )
    tracked = _nowhere(window)
    for name, pair in window.training.parameters.items():
        if name.endswith("num_batches_tracked") and pair.outputs:
            moved = [_same(window, pair.parameter, step, later) for step, later in pairwise(trained)]
            tracked[:, pair.outputs[0]] |= _changed(moved)
    since = trained[-2].number
    reason = f"batch normalisation counts no batch in step {since}, or does again: the mode changed"
    yield _hits(tracked, "mode changed", "shown", since, reason)


def _is_same(window: StepWindow, step: StepValues, one: int, other: int) -> npt.NDArray[np.bool_]:
    """Return for each rank whether two tensors have the same bytes in a step, or both are absent."""
    digest = window.digest(step)
    same: npt.NDArray[np.bool_] = (digest[:, one] == digest[:, other]).all(axis=1)
    return same


def _changed(states: list[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    if len(states) <= _MODE_BEFORE:
        return np.zeros_like(states[0])
    before = np.array(states[:-1])
    result: npt.NDArray[np.bool_] = (before == before[0]).all(axis=0) & (states[-1] != before[0])
    return result


def _is_input(key: TensorKey) -> bool:
    return key.op_type == "Gradient" or (key.io == "input" and key.op_type.startswith("Module."))


def _batch(rule: Rule, window: StepWindow) -> Iterator[TensorHits]:
    """Yield inputs of a model that are one value, those of the step before, or those of another rank.

    Of a step that calls the model several times, in validation or for parts of a batch, all calls count.
    """
    calls = _calls_of_model(window)
    if not calls or not window.before:
        return
    number, level, first = window.now.number, _level(window), calls[-1][0]
    is_large = window.value("count")[:, calls[-1]].max(axis=1) >= _ELEMENTS
    constant, repeated, shared, scaled = (_nowhere(window) for _ in range(4))
    for place in chain.from_iterable(calls):
        constant[:, place] |= _is_constant(window, place)
    if len(window.before) < _LEAST:
        yield _hits(constant, "batch of one value", "shown", number, _ONE_VALUE)
        return
    for place in calls[0]:
        scaled[:, place] |= _is_scaled(window, place) & is_large
    fed = [
        [window.digest(step)[:, places].reshape(len(is_large), -1) for places in calls]
        for step in window.steps
    ]
    again = [_are_in(later, batches) for batches, later in pairwise(fed)]
    repeated[:, first] |= again[-1] & ~np.logical_or.reduce(again[:-1]) & is_large
    alike = [_are_of_another_rank(batches) for batches in fed]
    shared[:, first] |= alike[-1] & ~np.logical_or.reduce(alike[:-1]) & is_large
    of_before = f"the input of step {window.before[-1].number} again; no earlier step repeats one"
    for what, marked, certain, reason in (
        ("batch of one value", constant, "shown", _ONE_VALUE),
        ("bad values in a batch", scaled, "likely", _SCALED),
        ("batch repeated", repeated, level, of_before),
        ("same batch on two ranks", shared, level, "another rank has the same input, as in no step before"),
    ):
        if what in rule["of"]:
            yield _hits(marked, what, certain, number, reason)


def _calls_of_model(window: StepWindow) -> list[list[int]]:
    """Return for each call of the model, which is the module that is called first, where its inputs are."""
    row = window.row(window.now)
    present = np.asarray((row >= 0).all(axis=0))
    inputs = [
        (int(row[:, place].max()), call)
        for call, (places, _) in window.training.modules.items()
        for place in places
        if present[place]
    ]
    places = window.training.modules[min(inputs)[1]][0] if inputs else ()
    calls = grouped((window.keys[place].occurrence, place) for place in places if present[place])
    return [calls[number] for number in sorted(calls)]


def _are_in(batches: Sequence[_Bytes], before: Sequence[_Bytes]) -> npt.NDArray[np.bool_]:
    known = [
        np.logical_or.reduce([(batch == other).all(axis=1) for other in before if other.shape == batch.shape])
        for batch in batches
        if batch.any()
    ]
    return np.logical_and.reduce(known) if known else np.zeros(len(batches[0]), bool)


def _are_of_another_rank(batches: Sequence[_Bytes]) -> npt.NDArray[np.bool_]:
    known = [
        np.array([(batch == own).all(axis=1).sum() > 1 for own in batch]) for batch in batches if batch.any()
    ]
    return np.logical_and.reduce(known) if known else np.zeros(len(batches[0]), bool)


def _is_constant(window: StepWindow, place: int) -> npt.NDArray[np.bool_]:
    """Return for each rank whether an input is one value, and no step before had one or was a mask.

    A mask has two values, such as 0 and 1 or 0 and -10000: then the variance is as large as it can be with
    this mean between these bounds (R. Bhatia and C. Davis, American Mathematical Monthly 107, 2000).
    """
    was: list[npt.NDArray[Any]] = []
    is_mask: list[npt.NDArray[Any]] = []
    for step in window.steps:
        low, high, mean, std = (window.value(name, step)[:, place] for name in ("min", "max", "mean", "std"))
        was.append(low == high)
        is_mask.append((low < high) & np.isclose(std**2, (mean - low) * (high - mean), rtol=1e-3))
    before: npt.NDArray[Any] = np.array([was[:-1], is_mask[:-1]])
    enough = window.value("count")[:, place] >= _ELEMENTS
    result: npt.NDArray[np.bool_] = was[-1] & ~before.any(axis=(0, 1)) & enough
    return result


def _is_scaled(window: StepWindow, place: int) -> npt.NDArray[np.bool_]:
    """Return for each rank whether an input is like those of all steps before, times one large factor."""
    names = ("std", "min", "max")
    known = np.array([[window.value(name, step)[:, place] for name in names] for step in window.steps])
    before, now, usual = known[:-1], known[-1], np.median(known[:-1], axis=0)
    factor, spread = now[0] / usual[0], before[:, 0] / usual[0]
    is_like = np.abs(now / factor - usual) <= (_SIMILAR - 1) * np.abs(usual[1:]).max(axis=0)
    is_steady = (np.maximum(spread, 1 / spread) <= _SIMILAR).all(axis=0)
    return np.asarray(is_steady & is_like.all(axis=0) & (np.maximum(factor, 1 / factor) >= _OTHER_UNITS))


def _has_gradients(window: StepWindow, step: StepValues) -> npt.NDArray[np.bool_]:
    gradients = [place for pair in window.training.parameters.values() for place in pair.gradients]
    places = gradients or [place for place, key in enumerate(window.keys) if key.op_type == "Gradient"]
    return np.asarray((window.row(step)[:, places] >= 0).any(axis=1))


def _same(window: StepWindow, place: int, step: StepValues, later: StepValues) -> npt.NDArray[np.bool_]:
    one, other = window.digest(step)[:, place], window.digest(later)[:, place]
    same: npt.NDArray[np.bool_] = (one == other).all(axis=1) & one.any(axis=1)
    return same


def _level(window: StepWindow) -> str:
    """Return how certain it is that digests tell equality: those of statistics alone hardly ever fail."""
    return "shown" if window.now.has_elements else "likely"


#: By kind.
KINDS: Mapping[str, _SeriesKind] = {
    "unchanged": _SeriesKind(_unchanged, steps_before=lambda rule: int(rule["steps"]) - 1),
    "change": _SeriesKind(_change, steps_before=lambda rule: int(rule["history"]) + 1),
    "drift": _SeriesKind(_drift, steps_before=lambda _: 1, needs_histograms=True),
    "outlier": _SeriesKind(_outlier, steps_before=lambda rule: int(rule["history"])),
    "not_updated": _SeriesKind(_not_updated, steps_before=_passes, reads=_is_trained),
    "no_gradient": _SeriesKind(_no_gradient, steps_before=lambda _: _HISTORY, reads=_is_trained),
    "accumulated": _SeriesKind(_accumulated, steps_before=lambda _: 1, reads=_is_trained),
    "mode": _SeriesKind(_mode, steps_before=lambda _: _HISTORY, reads=_has_mode),
    "batch": _SeriesKind(_batch, steps_before=lambda _: _HISTORY, reads=_is_input),
}
