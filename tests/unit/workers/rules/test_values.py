"""Rules as values: what travels to workers, and what is written next to findings."""

import pickle

from tests.rule_sets import only
from workers.errors import UsageError
from workers.rules.load import load_rules
from workers.rules.values import Rule, Scope, Selector, evaluated, why_failed
from workers.store.model import Finding


def test_rules_come_back_from_a_pickle_as_they_were() -> None:
    rules = load_rules().enabled
    assert pickle.loads(pickle.dumps(rules)) == rules  # noqa: S301  (its own)


def test_a_definition_has_no_empty_fields() -> None:
    (rule,) = only(kind="zeros", include="Conv*", where="count > 9", rank="0-3").rules
    assert rule.to_dict() == {
        "kind": "zeros",
        "severity": "warning",
        "description": "",
        "share_ge": 1.0,
        "elements_ge": 1.0,
        "include": ["Conv*"],
        "rank": [(0, 3)],
        "where": "count > 9",
        "limit": 1000,
    }


def test_rules_are_split_by_who_evaluates_them() -> None:
    rules = load_rules().enabled
    assert {rule.scope for rule in rules.step_rules} == {Scope.STEP}
    assert {rule.scope for rule in rules.series_rules} == {Scope.STEPS, Scope.RANKS}
    assert sorted((*rules.step_rules, *rules.series_rules), key=lambda rule: rule.name) == list(rules.rules)


def test_a_selector_without_ranks_is_about_all() -> None:
    assert Selector().has_rank(10_000)
    assert [rank for rank in range(6) if Selector(rank=((0, 1), (4, 4))).has_rank(rank)] == [0, 1, 4]


def test_findings_of_several_rules_come_worst_first() -> None:
    mild = Finding("rule", "info", 0, 1, 0, "", "", 0.0, 0.0, "")
    bad = Finding("rule", "critical", 0, 1, 1, "", "", 0.0, 0.0, "")
    result = evaluated(only(kind="zeros"), [[mild], [bad]], {"rule": 5}, {})
    assert result.findings == (bad, mild)
    assert result.totals == {"rule": 5}


def test_a_parameter_is_read_by_its_name() -> None:
    rule = Rule("mine", "zeros", "info", Selector(), (("share_ge", 0.5), ("elements_ge", 2.0)))
    assert (rule["share_ge"], rule["elements_ge"]) == (0.5, 2.0)


def test_a_failure_is_told_by_its_message_and_not_at_length() -> None:
    assert why_failed(UsageError("no histogram", hint="Add one.")) == "no histogram"
    assert why_failed(KeyError("x")) == "KeyError: 'x'"
    assert len(why_failed(ValueError("x" * 9999))) == 500
