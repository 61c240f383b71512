"""`compare --over-steps`: how far a rank of two runs is apart, by tensor over the steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import ingest
from ingest.cli.printing import print_json, print_line, print_table, say, short_name
from ingest.reader.text import counted, number_text
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.questions.compare.growth import ErrorGrowth

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
    from ingest.questions.compare.growth import error_growth
    from ingest.questions.compare.selection import parse_selection

    of_a, of_b = parse_selection(a), parse_selection(b)
    if of_a.step is not None or of_b.step is not None:
        raise UsageError("--over-steps is about all steps", hint="Write STORE or STORE@RANK.")
    if conditions.keys() - {"name"} or not isinstance(conditions.get("name", ""), str):
        raise UsageError("--over-steps chooses tensors by --name alone")
    store_a, store_b = (ingest.open_store(side.where, **options) for side in (of_a, of_b))
    ranks = {side.rank for side in (of_a, of_b) if side.rank is not None}
    if not ranks:
        ranks = set(store_a.ranks) & set(store_b.ranks)
    return error_growth(
        store_a, store_b, _only_rank(ranks), stat or "l2_norm", name=conditions.get("name", "*")
    )


def _only_rank(ranks: set[int]) -> int:
    if len(ranks) != 1:
        raise UsageError("--over-steps is about one rank of both runs", hint="Write STORE@RANK.")
    return ranks.pop()


def _print_tensors(growth: ErrorGrowth, shown: Iterable[tuple[int, int]]) -> None:
    columns = _spread(len(growth.steps))
    steps = tuple(f"step {growth.steps[column]}" for column in columns)
    rows = (
        (
            short_name(growth.tensors[place].name),
            f"step {growth.steps[onset]}",
            *(number_text(float(growth.errors[place, column])) for column in columns),
        )
        for place, onset in shown
    )
    print_table(("tensor", "differs in", *steps), rows, right=steps)


def print_growth(growth: ErrorGrowth, *, top: int | None, as_json: bool) -> None:
    """Print the tensors that differ first, each with its error over the steps; as JSON, every error."""
    if as_json:
        print_json(growth.rows())
        return
    order = growth.by_onset()
    shown = order if top is None else order[:top]
    if shown:
        _print_tensors(growth, shown)
    elif not order:
        print_line("no tensor differs in any step")
    rest = f", of which {len(shown)} are shown" if len(shown) < len(order) else ""
    error = f"relative error of {growth.statistic}"
    error += f", which is not known of {growth.unknown}" if growth.unknown else ""
    say(
        f"rank {growth.rank}, {counted(len(growth.steps), 'step')}: {len(order)} of "
        f"{counted(len(growth.tensors), 'tensor')} differ{rest}; {error}"
    )


def _spread(length: int) -> list[int]:
    """Return at most eight places, evenly spaced, the first and the last among them."""
    count = min(length, _COLUMNS)
    return sorted({round(place * (length - 1) / max(count - 1, 1)) for place in range(count)})
