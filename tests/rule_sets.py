"""Make sets of rules, and steps over which they are evaluated."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.steps import commit_tables, make_tables
from ingest.consolidating.consolidator import Consolidator
from ingest.findings.series import StepFindings
from ingest.findings.stored import SeriesEvaluator
from tests.replicas import Replicas
from workers.arrays.digest import digest
from workers.arrays.statistics import summarise
from workers.model import StepKey
from workers.rules.schema import RULE, rule_set
from workers.rules.step import evaluate
from workers.rules.values import RuleSet
from workers.store.model import Evaluated
from workers.store.objects import ObjectStore
from workers.store.tables import LABELS, Tables

KEY = StepKey(3, 7)
GRADIENT = "MatMul.Gradients_net-op0.output.0"
Array = np.ndarray[Any, Any]


def only(**fields: Any) -> RuleSet:
    """Return a set with a single rule, named mine, as a file of rules would define it."""
    return rule_set([RULE.validate_python({"name": "mine", **fields})])


def tables_of(*tensors: Array, **labels: str) -> Tables:
    """Return the tables of a step with these tensors, named op0, op1, ..."""
    tables = make_tables(KEY, [f"op{i}" for i in range(len(tensors))])
    for row, values in enumerate(tensors):
        tables.statistics[row] = summarise(values.reshape(-1)).as_row()
        tables.labels[row, LABELS.index("dtype")] = values.dtype.name
    for name, text in labels.items():
        tables.labels[:, LABELS.index(name)] = text
    return tables


def evaluated(tables: Tables, **rule: Any) -> Evaluated:
    """Return what a single rule finds in the tables of a step."""
    return evaluate(only(**rule), tables, KEY)


def rows(tables: Tables, **rule: Any) -> list[int]:
    """Return the rows for which a single rule fires."""
    result = evaluated(tables, **rule)
    assert not result.failed
    return [finding.row for finding in result.findings]


def numbers(*values: float, dtype: str = "f4") -> Array:
    return np.array(values, dtype)


def put(objects: ObjectStore, values: Sequence[Sequence[float] | None], rank: int = 0) -> None:
    """Commit one step for each of these values of a gradient; None stands for a step without it."""
    for step, gradient in enumerate(values):
        tensors = {"Relu.net.output.0": [step, step], **({} if gradient is None else {GRADIENT: gradient})}
        key = StepKey(rank, step)
        tables = make_tables(key, list(tensors))
        for row, (name, content) in enumerate(tensors.items()):
            array = np.array(content, np.float32)
            op_type, op_name, _, _ = name.split(".")
            tables.labels[row, LABELS.index("op_type")] = op_type
            tables.labels[row, LABELS.index("op_name")] = op_name
            tables.statistics[row] = summarise(array).as_row()
            tables.digest[row] = np.frombuffer(digest(array.tobytes()), np.uint8)
        commit_tables(objects, key, tables)


def consolidated(objects: ObjectStore, rules: RuleSet) -> list[StepFindings]:
    """Evaluate rules over several steps for all steps that were not evaluated before."""
    # Without `with`: no other consolidator competes for the lease.
    return list(Consolidator(objects, evaluator=SeriesEvaluator(objects, rules)).once().findings)


def steps_that_fire(values: Sequence[Sequence[float] | None], **rule: Any) -> list[int]:
    """Return the steps in which a rule fires for a gradient with these values, step by step."""
    objects = Replicas().objects
    put(objects, values)
    steps = consolidated(objects, only(include="*Gradients*", **rule))
    assert not any(step.result.failed for step in steps)
    return [step.step for step in steps if step.result.findings]
