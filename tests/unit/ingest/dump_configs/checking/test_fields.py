"""What a section may hold: kinds of values, required and misspelt keys, and rules over all of it."""

from typing import Any

import pytest

from ingest.dump_configs.checking.fields import (
    ConfigKey,
    ConfigRule,
    Kind,
    check_fields,
    check_rules,
    refuse,
    warn,
)
from ingest.dump_configs.model import ConfigFinding, Severity

SOURCE = "https://example.org/guide"


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (Kind.COUNT, [0, 7], [-1, True, 1.0, "1", None]),
        (Kind.TEXT, ["", "a"], [1, None, ["a"]]),
        (Kind.SWITCH, [True, False], [0, 1, "true"]),
        (Kind.TEXTS, [[], ["a", "b"]], ["a", ["a", 1], None]),
        (Kind.LIST, [[], [1, "a"]], ["a", {}, None]),
        (Kind.SECTION, [{}, {"a": 1}], [[], None, "{}"]),
    ],
)
def test_a_value_is_of_a_kind_or_is_not(kind: Kind, fitting: list[Any], others: list[Any]) -> None:
    assert all(kind.fits(value) for value in fitting)
    assert not any(kind.fits(value) for value in others)


@pytest.mark.parametrize(
    ("section", "severity", "text"),
    [
        ({}, Severity.REFUSED, "dump.path: is missing"),
        ({"path": 1}, Severity.REFUSED, "dump.path: must be a text, not 1"),
        ({"path": "/d", "mode": 3}, Severity.REFUSED, "dump.mode: 3 is not one of 0, 1"),
        ({"path": "/d", "kinds": ["a", "c"]}, Severity.REFUSED, "dump.kinds: 'c' is not one of a, b"),
        (
            {"path": "/d", "kind": 1},
            Severity.WARNING,
            "dump.kind: is not a key, and ignored; is kinds meant?",
        ),
        ({"path": "/d", "zzz": 1}, Severity.WARNING, "dump.zzz: is not a key, and ignored"),
    ],
)
def test_what_a_section_has_wrong_is_named_with_its_key(
    section: dict[str, Any], severity: Severity, text: str
) -> None:
    keys = (
        ConfigKey("path", Kind.TEXT, is_required=True),
        ConfigKey("mode", Kind.COUNT, (0, 1)),
        ConfigKey("kinds", Kind.TEXTS, ("a", "b")),
    )
    (finding,) = check_fields(section, keys, SOURCE, prefix="dump.")
    assert (finding.severity, str(finding), finding.source) == (severity, text, SOURCE)


def test_a_value_that_is_shown_is_cut() -> None:
    """A configuration may hold a million texts under a wrong key."""
    (finding,) = check_fields({"mode": "x" * 1000}, (ConfigKey("mode", Kind.COUNT),), SOURCE)
    assert len(finding.message) < 120


def test_rules_say_what_breaks_them() -> None:
    rules: list[ConfigRule[set[str]]] = [
        refuse("steps", "{} is not a step", SOURCE, lambda texts: next(iter(texts - {"1"}), "")),
        warn("steps", "is empty", SOURCE, lambda texts: not texts),
    ]
    assert list(check_rules({"1"}, rules)) == []
    assert list(check_rules({"1", "b"}, rules)) == [
        ConfigFinding(Severity.REFUSED, "steps", "b is not a step", SOURCE)
    ]
    assert list(check_rules(set[str](), rules)) == [
        ConfigFinding(Severity.WARNING, "steps", "is empty", SOURCE)
    ]
