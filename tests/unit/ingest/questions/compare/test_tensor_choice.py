"""A comparison may be limited to some tensors, without changing which is compared with which."""

import pytest

from ingest.questions.compare.run import compare
from ingest.reader.tensor_filter import FilterFields
from workers.errors import UsageError


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ({"role": "loss"}, 1),
        ({"role": "weight", "io": "input"}, 6),
        ({"name": "Log.*"}, 2),
        ({"where": "dtype == 'int32' and step == 1"}, 4),
        ({"where": "max > 1e30"}, 0),
    ],
)
def test_only_chosen_tensors_are_compared(nan_log: str, chosen: FilterFields, count: int) -> None:
    if not count:
        with pytest.raises(UsageError, match="fulfils --where 'max > 1e30'"):
            compare(f"{nan_log}@0,1", f"{nan_log}@1,1", **chosen)
        return
    comparison = compare(f"{nan_log}@0,1", f"{nan_log}@1,1", keep_equal=True, **chosen)
    assert len(comparison.tensors) == count


def test_conditions_name_what_both_kinds_of_sides_have(nan_log: str) -> None:
    with pytest.raises(UsageError, match="'source', which is not a column"):
        compare(nan_log, nan_log, where="source == 'x'")
