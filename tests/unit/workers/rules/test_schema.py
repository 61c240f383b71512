"""The models of rules: what fields become, and that every kind is part of the schema for editors."""

import re

import pytest
from pydantic import ValidationError

from tests.rule_sets import only
from workers.rules.schema import COMMON_FIELDS, MODELS, RULE, file_schema
from workers.rules.step import COLUMNS
from workers.store.consolidated.blocks import BLOCK_COLUMNS


def test_the_schema_of_a_file_describes_every_kind_and_field() -> None:
    definitions = file_schema()["$defs"]
    kinds = {definition["properties"]["kind"]["const"]: definition for definition in definitions.values()}
    assert kinds.keys() == MODELS.keys()
    for definition in kinds.values():
        common = {name: field for name, field in definition["properties"].items() if name in COMMON_FIELDS}
        assert {name for name, field in common.items() if "description" not in field} <= {"kind", "where"}


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        (3, ((3, 3),)),
        ("0-7", ((0, 7),)),
        ("0-2, 4", ((0, 2), (4, 4))),
        ([0, "2-3"], ((0, 0), (2, 3))),
        ([], ()),
    ],
)
def test_ranks_are_numbers_and_spans(text: object, spans: tuple[tuple[int, int], ...]) -> None:
    assert only(kind="zeros", rank=text).rules[0].selector.rank == spans


@pytest.mark.parametrize("text", ["a", "3-1", True, "-1", [[1]], "99999999", "1 - 2", "1.0", ""])
def test_what_is_not_a_span_of_ranks_is_refused(text: object) -> None:
    with pytest.raises(ValidationError, match="must be ranks such as"):
        RULE.validate_python({"name": "mine", "kind": "zeros", "rank": text})


def test_numbers_of_a_rule_are_floats_for_those_who_evaluate_it() -> None:
    rule = only(kind="zeros", elements_ge=16).rules[0]
    assert dict(rule.parameters) == {"share_ge": 1.0, "elements_ge": 16.0}
    assert all(isinstance(value, float) for _, value in rule.parameters)


@pytest.mark.parametrize(("kind", "columns"), [("condition", COLUMNS), ("unchanged", BLOCK_COLUMNS)])
def test_every_column_can_be_compared_with_what_it_holds(kind: str, columns: frozenset[str]) -> None:
    texts = set()
    for column in columns:
        try:
            only(kind=kind, where=f"{column} > 0")
        except ValidationError:
            only(kind=kind, where=f"{column} == 'x' and {column} in ['y']")
            texts.add(column)
    assert {"name", "op_type", "role", "graph"} <= texts
    assert not texts & {"nan_count", "slot", "rank", "step", "max"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan_cout > 0", "names 'nan_cout', which is not a column. Did you mean nan_count"),
        ("max", "'max' is a value, not a condition"),
        ("io > 3", "'io > 3' takes text for a number"),
        ("op_type == Sqrt", "Quote it if it is text: op_type == 'Sqrt'."),
    ],
)
def test_a_mistake_in_a_condition_is_told_at_once(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        only(kind="condition", where=text)
