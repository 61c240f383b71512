"""All that is known of one tensor."""

from pathlib import Path

import pytest

import ingest
from ingest.reader.shown import shown_tensor

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
