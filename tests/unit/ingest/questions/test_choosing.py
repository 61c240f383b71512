"""Statistics, steps and tensors that users name, and why there may be none."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

import ingest
from ingest.questions.choosing import empty_choice_error, statistic_for, statistic_named
from ingest.questions.compare.thresholds import ThresholdRule
from ingest.questions.heatmap import heatmap
from ingest.questions.placement.layout_map import MappedPlacement
from ingest.questions.trend import trend
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.arrays.statistics import STATISTICS
from workers.errors import UsageError
from workers.store.consolidated.blocks import BLOCK_COLUMNS, TensorKey

KEYS = [
    TensorKey("Net", "0", "MatMul", "fc-op0", "output", 0),
    TensorKey("Net", "0", "Log", "log-op0", "input", 0),
]


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        (
            {"name": "matmul.*"},
            "no tensor is named like 'matmul.*'",
            "In another case: MatMul.fc-op0.output.0",
        ),
        ({"op_type": "matmul"}, "no tensor has the op_type 'matmul'", "Did you mean MatMul? Case matters."),
        ({"op_type": "MatMull"}, "no tensor has the op_type 'MatMull'", "Near: MatMul"),
        ({"graph": "9"}, "no tensor has the graph '9'", "There are: 0"),
        ({"role": "loss", "io": "output"}, "no tensor fulfils --role 'loss' --io 'output'", "find STORE"),
    ],
)
def test_the_error_is_about_the_condition_that_nothing_fulfils(
    fields: FilterFields, message: str, hint: str
) -> None:
    error = empty_choice_error(TensorFilter(fields, BLOCK_COLUMNS), KEYS)
    assert error.message == message
    assert hint in error.hint


@pytest.mark.parametrize("ask", [trend, heatmap])
def test_what_is_not_there_is_refused_and_near_names_are_named(
    ask: Callable[..., object], nan_log: Path
) -> None:
    store = ingest.open_store(nan_log)
    with pytest.raises(UsageError, match="no tensor") as error:
        ask(store, "Logg.*")
    assert "Log.Default_net-LogLoss_Log-op0.output.0" in error.value.hint
    with pytest.raises(UsageError, match="no step 9"):
        ask(store, step=9)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("l2norm", "l2_norm"),
        ("norm", "l2_norm"),
        ("NaN", "nan_count"),
        ("inf", "inf_count"),
        ("posinf", "pos_inf_count"),
        ("stddev", "std"),
        ("Zero-Count", "zero_count"),
        *((name, name) for name in STATISTICS),
    ],
)
def test_statistics_go_by_several_names(name: str, meant: str) -> None:
    assert statistic_named(name) == meant


def test_without_a_name_a_loss_has_its_mean_and_anything_else_its_norm() -> None:
    assert statistic_for(None, {"role": "loss"}) == "mean"
    assert statistic_for(None, {"role": "weight"}) == statistic_for(None, {}) == "l2_norm"
    assert statistic_for("nan", {"role": "loss"}) == "nan_count"


@pytest.mark.parametrize(("model", "rest"), [(ThresholdRule, {}), (MappedPlacement, {"a": "replicated"})])
def test_what_is_not_a_regular_expression_is_refused(
    model: type[ThresholdRule | MappedPlacement], rest: dict[str, str]
) -> None:
    with pytest.raises(ValidationError, match="regex '\\('"):
        model.model_validate({"regex": "(", **rest})
