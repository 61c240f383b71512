"""Hold statements against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from proving.answers import Asked
from proving.case import Case, Result, Statement, Truth, Verdict


def result(case: Case, truth: Truth | None, asked: Asked) -> Result:
    """Return the verdict on the answer to each question."""
    verdicts = dict.fromkeys(asked.problems, Verdict.BROKEN)
    for question, statements in asked.statements.items():
        verdicts[question] = of_healthy(statements) if truth is None else of_fault(truth, statements)
    said = tuple(one for statements in asked.statements.values() for one in statements)
    problem = "; ".join(f"{question}: {problem}" for question, problem in asked.problems.items())
    return Result(case, truth, verdicts, said, problem)


def of_healthy(statements: Sequence[Statement]) -> Verdict:
    """Return the verdict on what is said of a run in which nothing is wrong."""
    return Verdict.FALSE_ALARM if statements else Verdict.QUIET


def of_fault(truth: Truth, statements: Sequence[Statement]) -> Verdict:
    """Return the verdict on an answer: the first statement counts, and the others must not be false."""
    if not statements:
        return Verdict.SILENT
    first, *others = statements
    if not _fits(truth, first) or any(_is_false(truth, other) for other in others):
        return Verdict.WRONG
    return Verdict.OPEN if _is_open(truth, first) else Verdict.RIGHT


def _fits(truth: Truth, statement: Statement) -> bool:
    """Return whether place, step, ranks, and the cause, if one is stated, are true."""
    return (
        _is_place(truth, statement)
        and statement.step is not None
        and truth.steps[0] <= statement.step <= truth.steps[1]
        and (not statement.ranks or not {*truth.ranks}.isdisjoint(statement.ranks))
        and (not statement.cause or statement.cause in truth.causes)
    )


def _is_place(truth: Truth, statement: Statement) -> bool:
    return any(fnmatchcase(name, place) for name in statement.places for place in truth.places)


def _is_open(truth: Truth, statement: Statement) -> bool:
    """Return whether it leaves something open: the cause, or which of several ranks it is.

    Of one run alone, a symptom without a cause leaves the cause open. A comparison is asked where two runs
    part, and its answer is the place.
    """
    has_no_cause = not statement.cause and statement.question != "compare"
    has_no_rank = not statement.ranks or not {*statement.ranks} <= {*truth.ranks}
    return statement.admits or has_no_cause or has_no_rank


def _is_false(truth: Truth, statement: Statement) -> bool:
    """Return whether a further statement is false: a cause that is none, or something before the fault.

    What follows from the fault may be told as a symptom, without a cause.
    """
    is_early = statement.step is None or statement.step < truth.steps[0]
    return is_early or (bool(statement.cause) and not _fits(truth, statement))
