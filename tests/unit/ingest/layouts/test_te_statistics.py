"""Lines of nvdlfw-inspect: layers, tensors and statistics are told apart by the names of tensors."""

import time

import pytest

from ingest.layouts.numerics import read_te_lines
from workers.dump.model import ReportedStatistics


def rows_of(*numbers: tuple[str, str]) -> list[ReportedStatistics]:
    lines = "".join(
        f"2026-01-01 00:00:00,000 - INFO - {name} \t\t\t\t iteration=000003 \t\t\t\t value={value}\n"
        for name, value in numbers
    )
    return list(read_te_lines("log", lines.encode(), "tensor_dumps/rank_0/iter_000003"))


@pytest.mark.parametrize(
    ("name", "op_name", "io", "statistic"),
    [
        ("decoder.0.fc1_activation_max", "decoder.0.fc1", "input", "max"),
        ("output_layer_output_min", "output_layer", "output", "min"),
        ("a_weight_b_gradient_mean", "a_weight_b.backward", "input", "mean"),
        ("fc_wgrad_std", "fc.backward", "parameters_grad.weight", "std"),
    ],
)
def test_names(name: str, op_name: str, io: str, statistic: str) -> None:
    (row,) = rows_of((name, "1.5000"))
    assert (row.name.op_name, row.name.io, getattr(row.statistics, statistic)) == (op_name, io, 1.5)


@pytest.mark.parametrize(
    "statistic",
    [
        "fp8_delayed_scaling_underflows%",
        "mxfp8_scale_inv_min_columnwise",
        "max_blockwise_dynamic_range_block_size_32_dims_1",
        "nvfp4_mse",
    ],
)
def test_statistics_of_recipes_keep_their_names(statistic: str) -> None:
    tensor, share = rows_of((f"fc_weight_{statistic}", "0.2500"))
    assert (tensor.name.io, share.name.io) == (
        "parameters.weight",
        f"statistic.parameters.weight.{statistic}",
    )
    assert share.statistics.mean == 0.25


def test_line_with_an_endless_name_is_passed_over_at_once() -> None:
    """The time would grow with the square of its length: hours for four megabytes."""
    begun = time.process_time()
    assert rows_of(("a_weight_" * 20_000 + "/", "1.0000")) == []
    assert time.process_time() - begun < 1


def test_tensors_are_found_where_the_same_tool_saves_them() -> None:
    (row,) = rows_of(("decoder.0/fc 1_activation_max", "1.0000"))
    assert row.tensor == "tensor_dumps/rank_0/iter_000003/decoder_0_fc_1_activation.pt"
