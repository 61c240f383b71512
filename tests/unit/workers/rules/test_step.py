"""Evaluating the rules over one step: what is stored and counted, and that nothing stops a commit."""

import numpy as np

from tests.rule_sets import KEY, evaluated, numbers, only, tables_of
from workers.rules.step import evaluate
from workers.rules.values import Rule, RuleSet, Scope, Selector


def test_a_limit_bounds_what_is_stored_and_not_what_is_counted() -> None:
    result = evaluated(tables_of(*[numbers(np.nan)] * 9), kind="not_finite", limit=4)
    assert [finding.row for finding in result.findings] == [0, 1, 2, 3]
    assert result.totals == {"mine": 9}


def test_a_rule_that_fails_is_named_and_the_others_are_evaluated() -> None:
    """Whatever a rule holds that nobody thought of: the step is committed."""
    broken = Rule("broken", "too_large", "info", Selector(), (("max_gt", 0.0),), where="nan_count == 'x' + 1")
    worse = Rule("worse", "no_such_kind", "info", Selector(), ())
    fine = only(kind="not_finite").rules
    result = evaluate(RuleSet((broken, worse, *fine), "d"), tables_of(numbers(np.nan, 1)), KEY)
    assert result.totals == {"mine": 1}
    assert set(result.failed) == {"broken", "worse"}


def test_a_finding_says_where_and_what() -> None:
    (finding,) = evaluated(tables_of(numbers(4)), kind="too_large", max_gt=2, severity="critical").findings
    assert (finding.rule, finding.severity, finding.rank, finding.step, finding.row) == (
        "mine",
        "critical",
        3,
        7,
        0,
    )
    assert (finding.name, finding.graph, finding.value, finding.threshold) == (
        "MatMul.op0.output.0",
        "0",
        4.0,
        2.0,
    )
    assert finding.reason == "max 4 > 2"


def test_rules_over_several_steps_are_left_to_others() -> None:
    rule = Rule("later", "unchanged", "info", Selector(), (), scope=Scope.STEPS)
    result = evaluate(RuleSet((rule,), "d"), tables_of(numbers(1)), KEY)
    assert not result.totals
    assert not result.failed
