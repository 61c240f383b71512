"""What `compare` prints of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import ingest
from ingest.cli.printing import Style, print_json, print_line, print_table, say
from ingest.cli.question import print_answer
from ingest.questions.compare.result import (
    GOOD,
    UNMATCHED,
    ComparedTensor,
    Comparison,
    FirstDifference,
    Verdict,
)
from ingest.questions.placement.decide import Certainty
from ingest.questions.question import Rows
from ingest.reader.choice import format_ranges, named_ranges
from ingest.reader.text import counted, number_text, shape_text
from workers.errors import UsageError
from workers.model import StepKey

if TYPE_CHECKING:
    from ingest.questions.growth import ErrorGrowth

#: How many steps the summary lists.
_MAX_STEPS = 24
#: Columns of metrics, and their fields.
_METRICS = {
    "max abs": "max_abs",
    "max rel": "max_relative",
    "rel Euclid": "relative_euclidean",
    "cosine": "cosine",
    "in 1/1000": "within_1_per_mille",
}


def print_comparison(comparison: Comparison, *, top: int | None) -> None:
    """Print how many tensors of each step have which verdict, and the tensors themselves.

    Args:
        comparison: the comparison.
        top: print this many tensors, the worst first, without equal ones; None: all, in order of execution.
    """
    _print_counts(comparison)
    if comparison.layout:
        print_line("")
        _print_layout(comparison)
    if top is None:
        tensors = list(comparison.tensors)
    else:
        tensors = [tensor for tensor in comparison.worst() if _is_worth_a_line(comparison, tensor)][:top]
    if tensors:
        print_line("")
        _print_tensors(tensors)


def _is_worth_a_line(comparison: Comparison, tensor: ComparedTensor) -> bool:
    if tensor.verdict in UNMATCHED:
        return comparison.unmatched_matter
    return tensor.verdict not in {Verdict.IGNORED, Verdict.EQUAL}


def _print_counts(comparison: Comparison) -> None:
    counts, steps = comparison.counts, list(comparison.steps)
    verdicts = [verdict for verdict in Verdict if counts[verdict]]
    if len(steps) > _MAX_STEPS:
        steps = [step for step in steps if any(n and of not in GOOD for of, n in step.counts.items())]
        if len(steps) > _MAX_STEPS:
            say(f"{len(steps)} steps differ, the first {_MAX_STEPS} shown (--json, --html FILE)")
    rows = [
        [
            _both(step.key_a.rank, step.key_b.rank),
            _both(step.key_a.step, step.key_b.step),
            *(str(step.counts.get(verdict, 0)) for verdict in verdicts),
        ]
        for step in steps[:_MAX_STEPS]
    ]
    if len(comparison.steps) > 1:
        rows.append(["all", str(len(comparison.steps)), *(str(counts[verdict]) for verdict in verdicts)])
    print_table(("rank", "step", *verdicts), rows, right=verdicts)


def _print_layout(comparison: Comparison) -> None:
    known = {certainty for _, certainty in comparison.layout}
    certainties = [certainty for certainty in Certainty if certainty in known]
    rows = [
        [placement, *(str(comparison.layout.get((placement, word), 0)) for word in certainties)]
        for placement in sorted({placement for placement, _ in comparison.layout})
    ]
    print_table(("layout", *certainties), rows, right=certainties)


def _print_tensors(tensors: Sequence[ComparedTensor]) -> None:
    columns: dict[str, Callable[[ComparedTensor], object]] = {
        "rank": lambda of: (
            _both(of.key_a.rank, of.key_b.rank)
            if of.held is None
            else _both(format_ranges(of.held.ranks_a), format_ranges(of.held.ranks_b))
        ),
        "step": lambda of: _both(of.key_a.step, of.key_b.step),
        "verdict": lambda of: of.verdict.value,
        "name": _names,
        "layout": _layout,
        "dtype": lambda of: _both(of.dtype_a, of.dtype_b),
        "shape": lambda of: _both(shape_text(of.shape_a), shape_text(of.shape_b)),
        **{heading: partial(_metric, field) for heading, field in _METRICS.items()},
        # How many times the derived limit it is, and whether what came before explains that.
        "times": lambda of: (
            f"{of.bound.times:.2g}" + " (explained)" * (of.bound.explained and of.bound.times > 1)
            if of.bound is not None and of.metrics is not None
            else ""
        ),
        "reason": lambda of: of.reason,
    }
    if not any(tensor.held for tensor in tensors):
        del columns["layout"]
    spare = ["times", "in 1/1000", "dtype", "max rel", "cosine", "shape", "layout", "max abs", "rel Euclid"]
    print_answer(Rows("", tensors, columns, right=(*_METRICS, "times"), spare=spare), as_json=False)


def _metric(field: str, tensor: ComparedTensor) -> float | None:
    return getattr(tensor.metrics, field) if tensor.metrics else None


def say_summary(comparison: Comparison, *, top: int | None) -> None:
    """Print to stderr what was not compared, the first difference, and the verdict.

    Args:
        comparison: the comparison.
        top: how many tensors were printed; None: all.
    """
    for side, step in comparison.left_out:
        say(f"{side}: {step}", label="left out")
    _say_missing("A", comparison.only_a)
    _say_missing("B", comparison.only_b)
    for note in comparison.notes:
        say(note, label="note")
    listed = [tensor for tensor in comparison.tensors if _is_worth_a_line(comparison, tensor)]
    if top is not None and len(listed) > top:
        _say_shortened(listed, top)
    if (first := comparison.first) is not None:
        _say_first(first)
    verdict = comparison.verdict + _of_both_sides(comparison)
    style: Style = (
        "bold green" if comparison.is_within else "yellow" if comparison.is_undecided else "bold red"
    )
    say(verdict, label="verdict", style=style)


def _of_both_sides(comparison: Comparison) -> str:
    counts = {verdict: count for verdict, count in comparison.counts.items() if verdict not in UNMATCHED}
    if comparison.is_within or not counts or not GOOD.issuperset(counts):
        return ""
    common = sum(counts.values())
    are = "is" if common == 1 else "are"
    how = "equal" if set(counts) == {Verdict.EQUAL} else "within the limits"
    return f"; the {counted(common, 'tensor')} that both sides have {are} {how}"


def _say_missing(side: str, keys: Sequence[StepKey]) -> None:
    for key in keys[:_MAX_STEPS]:
        say(f"{key} is only in {side}", label="missing")
    if len(keys) > _MAX_STEPS:
        say(f"{len(keys) - _MAX_STEPS} more steps are only in {side}", label="missing")


def _say_shortened(listed: Sequence[ComparedTensor], top: int) -> None:
    are = "is" if len(listed) == 1 else "are"
    how = "on one side only" if all(tensor.verdict in UNMATCHED for tensor in listed) else "not equal"
    shown = f"the worst {top} shown (--top N, --all, --html FILE)"
    say(f"{counted(len(listed), 'tensor')} {are} {how}, {shown}")


def _say_first(first: FirstDifference) -> None:
    held = first.tensor.held
    ranks = named_ranges("rank", first.ranks or (held and held.ranks_a) or [first.tensor.key_a.rank])
    where = f"step {first.tensor.key_a.step}, {ranks}: {first.tensor.name}"
    if first.tensor.guessed:
        where += f" (guess: it is {first.tensor.name_b} of B, by {first.tensor.matched})"
    says = f"; {first.says}" if first.says else ""
    say(f"{where}: {first.reason}{says}", label="first difference", style="bold")
    for other in first.others:
        say(f"  also {other.name}: {other.says}")


def _layout(tensor: ComparedTensor) -> str:
    held = tensor.held
    if held is None:
        return ""
    return held.placement if held.certainty == Certainty.CERTAIN else f"{held.placement} ({held.certainty})"


def _both(a: object, b: object) -> str:
    """Return the cell for both sides: one value if they agree or only one side has it, else `a | b`."""
    if a == b or not f"{a}" or not f"{b}":
        return f"{a}" or f"{b}"
    return f"{a} | {b}"


def _names(tensor: ComparedTensor) -> str:
    names = [tensor.name_a or tensor.name_b]
    if tensor.name_a and tensor.name_b and tensor.name_a != tensor.name_b:
        names.append(tensor.name_b)
    names_text = " | ".join(names)
    remarks = [f"guess: {tensor.matched}"] * tensor.guessed + [tensor.form] * bool(tensor.form)
    return f"{names_text} ({', '.join(remarks)})" if remarks else names_text


#: Steps of which an error is printed: the table has to fit.
_COLUMNS = 8


def growth_between(
    a: str, b: str, conditions: dict[str, Any], options: dict[str, Any], stat: str | None = None
) -> ErrorGrowth:
    """Measure the error between two stores over the steps.

    Args:
        a: a store, or `STORE@RANK`.
        b: the reference, in the same form.
        conditions: which tensors; a name alone.
        options: what `open_store` takes besides the URL.
        stat: the statistic; None for `l2_norm`.

    Raises:
        UsageError: a side is not a rank of a store, or there are other conditions.
    """
    # deferred: numpy takes 0.1 s to import
    from ingest.questions.compare.selection import parse_selection
    from ingest.questions.growth import error_growth

    of_a, of_b = parse_selection(a), parse_selection(b)
    if (of_a.step, of_b.step) != (None, None):
        raise UsageError("--over-steps is about all steps", hint="Write STORE or STORE@RANK.")
    if conditions.keys() - {"name"} or not isinstance(conditions.get("name", ""), str):
        raise UsageError("--over-steps chooses tensors by --name alone")
    store_a, store_b = (ingest.open_store(side.where, **options) for side in (of_a, of_b))
    ranks = {side.rank for side in (of_a, of_b) if side.rank is not None}
    ranks = ranks or set(store_a.ranks) & set(store_b.ranks)
    if len(ranks) != 1:
        raise UsageError("--over-steps is about one rank of both runs", hint="Write STORE@RANK.")
    return error_growth(store_a, store_b, ranks.pop(), stat or "l2_norm", name=conditions.get("name", "*"))


def print_growth(growth: ErrorGrowth, *, top: int | None, as_json: bool) -> None:
    """Print the tensors that differ first, each with its error over the steps; as JSON, every error."""
    if as_json:
        print_json(growth.rows())
        return
    order = growth.by_onset()
    shown = order[:top]
    if shown:
        # Evenly spaced, the first and the last among them.
        count = min(len(growth.steps), _COLUMNS)
        places = sorted({round(at * (len(growth.steps) - 1) / max(count - 1, 1)) for at in range(count)})
        steps = tuple(f"step {growth.steps[column]}" for column in places)
        rows = (
            (
                growth.tensors[place].name,
                f"step {growth.steps[onset]}",
                *(number_text(float(growth.errors[place, column])) for column in places),
            )
            for place, onset in shown
        )
        print_table(("tensor", "differs in", *steps), rows, right=steps)
    elif not order:
        print_line("no tensor differs in any step")
    rest = f", of which {len(shown)} are shown" if len(shown) < len(order) else ""
    error = f"relative error of {growth.statistic}"
    error += f", which is not known of {growth.unknown}" if growth.unknown else ""
    say(
        f"rank {growth.rank}, {counted(len(growth.steps), 'step')}: {len(order)} of "
        f"{counted(len(growth.tensors), 'tensor')} differ{rest}; {error}"
    )
