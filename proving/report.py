"""The tables of results: as text, as JSON, as a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment

from proving.case import Result, Verdict

_ORDER = (
    Verdict.RIGHT,
    Verdict.OPEN,
    Verdict.SILENT,
    Verdict.WRONG,
    Verdict.QUIET,
    Verdict.FALSE_ALARM,
    Verdict.BROKEN,
)
_TEMPLATE = Path(__file__).with_name("results.html.j2")


def by_list(results: Sequence[Result]) -> dict[str, Counter[Verdict]]:
    """Count the verdicts of each list, alone and compared; faults that one run does not show are apart."""
    counts: dict[str, Counter[Verdict]] = {}
    for result in results:
        lists = ["healthy"] if result.case.healthy else ["all faults", f"faults of {result.case.list}"]
        for asked, verdict in (("alone", result.alone), ("compared", result.compared)):
            if verdict is not None:
                hidden = asked == "alone" and result.truth is not None and result.truth.hidden
                for name in lists:
                    title = f"{name}, {asked}{', leaves no trace' if hidden else ''}"
                    counts.setdefault(title, Counter())[verdict] += 1
    return dict(sorted(counts.items()))


def by_question(results: Sequence[Result]) -> dict[str, Counter[Verdict]]:
    """Count the verdicts on each question."""
    counts: dict[str, Counter[Verdict]] = {}
    for result in results:
        for question, verdict in result.verdicts.items():
            kind = "healthy" if result.case.healthy else "fault"
            counts.setdefault(f"{question}, {kind}", Counter())[verdict] += 1
    return dict(sorted(counts.items()))


def text(results: Sequence[Result], *, verbose: bool = False) -> str:
    """Return both tables, and each case that is not as it should be."""
    tables = [_markdown("list", by_list(results)), _markdown("question", by_question(results))]
    return "\n\n".join([*tables, "\n".join(_rows(results, verbose=verbose))])


def changes(results: Sequence[Result], before: str) -> str:
    """Return which verdicts are others than in `before`, what `json_of` returned for another run."""
    were = {row["case"]["name"]: row for row in json.loads(before)["results"]}
    told = []
    for result in results:
        was = were.get(result.case.name, {})
        for asked, verdict in (("alone", result.alone), ("compared", result.compared)):
            if verdict != was.get(asked):
                told.append(f"{was.get(asked)} -> {verdict}: {result.case.name}, {asked}")
    return "\n".join([f"\n{len(told)} verdicts are others than before", *sorted(told)])


def _markdown(title: str, counts: dict[str, Counter[Verdict]]) -> str:
    lines = [f"| {title} | cases | {' | '.join(_ORDER)} |", "|---|--:|" + "--:|" * len(_ORDER)]
    for name, row in counts.items():
        cells = (str(row[verdict] or "") for verdict in _ORDER)
        lines.append(f"| {name} | {row.total()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(results: Iterable[Result], *, verbose: bool) -> Iterable[str]:
    for result in results:
        verdicts = {question: str(verdict) for question, verdict in result.verdicts.items()}
        is_good = {result.alone, result.compared} <= {Verdict.RIGHT, Verdict.QUIET, None}
        if is_good and not verbose:
            continue
        yield f"{result.case.name} ({result.case.source}): {verdicts}"
        if result.truth is not None:
            yield f"  truth: {result.truth}"
        if result.problem:
            yield f"  problem: {result.problem}"
        for statement in result.statements[: None if verbose else 4]:
            yield f"  {statement}"


def _plain(result: Result) -> dict[str, Any]:
    return {
        "case": asdict(result.case),
        "list": result.case.list,
        "truth": asdict(result.truth) if result.truth is not None else None,
        "alone": result.alone,
        "compared": result.compared,
        "verdicts": dict(result.verdicts),
        "statements": [asdict(statement) for statement in result.statements],
        "problem": result.problem,
    }


def json_of(results: Sequence[Result]) -> str:
    """Return everything as one object."""
    tables = {"by_list": by_list(results), "by_question": by_question(results)}
    return json.dumps({**tables, "results": [_plain(result) for result in results]}, indent=1)


def html(results: Sequence[Result]) -> str:
    """Return a page of its own."""
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        _TEMPLATE.read_text()
    )
    return template.render(
        tables=(("By list", by_list(results)), ("By question", by_question(results))),
        order=_ORDER,
        results=results,
    )
