"""All that is known of one tensor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.reader.shown import shown_tensor
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_a_tensor_is_shown_with_its_line_neighbours_anatomy_and_values(nan_log: Path) -> None:
    store = ingest.open_store(nan_log)
    (tensor,) = store.tensors(LOG, rank=1, step=2)
    shown = shown_tensor(store, tensor)
    assert shown["source_line"]["line"] == 45
    assert [row["name"].partition(".")[0] for row in shown["consumers"]] == ["ReduceMean"]
    assert shown["anatomy"]["nan"] == 2
    assert sum(line.count("NaN") for line in shown["values"]) == 2
    assert shown_tensor(store, tensor, at="0,:2")["values"] == shown["values"][0][:2]
    with pytest.raises(ingest.UsageError):
        shown_tensor(store, tensor, at="99,0")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array(["a", "é"]), ["a", "é"]),
        (np.array([b"a", b"bc"]), ["61", "6263"]),
        (np.array(["2030-01-31", "NaT"], "M8[D]"), ["2030-01-31", None]),
        (np.array([(1, 2.5), (3, np.nan)], "i4,f8"), [[1, 2.5], [3, "NaN"]]),
        (np.zeros(2, "(2,)i2,f4"), [[[0, 0], 0.0]] * 2),
    ],
)
def test_elements_that_are_no_numbers_are_shown(
    made: MadeDump, store: Path, values: np.ndarray[Any, Any], expected: list[Any]
) -> None:
    made.add(values)
    ingest_directly(made.root, store)
    opened = ingest.open_store(store)
    shown = shown_tensor(opened, opened.tensors()[0])
    assert json.loads(json.dumps(shown["values"])) == expected
    assert shown["anatomy"]["elements"] == 2
