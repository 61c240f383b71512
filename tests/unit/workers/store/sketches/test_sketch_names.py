"""Which names are those of sketches."""

from workers.store.sketches.sketch_names import ColumnsWithSketches, is_sketch_column


def test_only_what_can_be_asked_is_a_column() -> None:
    assert all(map(is_sketch_column, ("p0", "p99_9", "abs_p100", "overflow_bfloat16", "underflow_e5m7")))
    assert not any(map(is_sketch_column, ("p101", "p", "overflow_float9", "max", "abs_max", "p1_2_3")))


def test_columns_with_sketches_have_both() -> None:
    columns = ColumnsWithSketches(["mean"])
    assert "mean" in columns
    assert "p50" in columns
    assert "std" not in columns
