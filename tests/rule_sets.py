"""Rules, and tables of a step for them to look at."""

from typing import Any

import numpy as np

from bench.steps import make_tables
from workers.arrays.statistics import summarise
from workers.model import StepKey
from workers.rules.load import rule_set
from workers.rules.schema import RULE
from workers.rules.step import evaluate
from workers.rules.values import RuleSet
from workers.store.model import Evaluated
from workers.store.tables import LABELS, Tables

KEY = StepKey(3, 7)
Array = np.ndarray[Any, Any]


def only(**fields: Any) -> RuleSet:
    """Return a set of a single rule, named mine, as a file would define it."""
    return rule_set([RULE.validate_python({"name": "mine", **fields})])


def tables_of(*tensors: Array, **labels: str) -> Tables:
    """Return the tables of a step with these tensors, named op0, op1, ..."""
    made = make_tables(KEY, [f"op{i}" for i in range(len(tensors))])
    for row, values in enumerate(tensors):
        made.statistics[row] = summarise(values.reshape(-1)).as_row()
        made.labels[row, LABELS.index("dtype")] = values.dtype.name
    for name, text in labels.items():
        made.labels[:, LABELS.index(name)] = text
    return made


def evaluated(made: Tables, **rule: Any) -> Evaluated:
    """Return what a single rule finds."""
    return evaluate(only(**rule), made, KEY)


def rows(made: Tables, **rule: Any) -> list[int]:
    """Return the rows for which a single rule fires."""
    result = evaluated(made, **rule)
    assert not result.failed
    return [finding.row for finding in result.findings]


def numbers(*values: float, dtype: str = "f4") -> Array:
    return np.array(values, dtype)
