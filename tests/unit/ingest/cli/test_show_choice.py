"""Which tensor `show` is about, if it is not said in full."""

from pathlib import Path

import pytest

from ingest.api import DumpStore, open_store
from ingest.cli.show import choose_tensor
from tests.replicas import Replicas
from workers.errors import UsageError

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


@pytest.fixture(scope="module")
def store() -> DumpStore:
    """One rank, one step."""
    made = Replicas()
    made.put(0, 3, {"Adam.w.input.0": 1, "Adam.w.input.1": 2, "Mul.a[0].output.0": 3})
    return made.store


def test_rank_and_step_may_be_left_out_if_there_is_one(store: DumpStore) -> None:
    assert choose_tensor(store, "Mul.*", None, None, None).name == "Mul.a[0].output.0"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("Adam.*", "2 tensors that match 'Adam.*':\n    graph", "--graph tells graphs apart"),
        ("adam.w.input.9", "has no tensor 'adam.w.input.9'", "Similar: Adam.w.input."),
        ("Nothing at all", "rank 0 step 3 has no tensor", "dump-ingest ls STORE --tensors"),
    ],
)
def test_what_fits_none_or_several_is_named(store: DumpStore, name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        choose_tensor(store, name, None, None, None)
    assert message in error.value.message
    assert hint in error.value.hint


def test_with_several_ranks_or_steps_one_must_be_named(nan_store: Path) -> None:
    store = open_store(nan_store)
    with pytest.raises(UsageError, match="there are 2 ranks") as error:
        choose_tensor(store, LOG, None, 2, None)
    assert error.value.hint == "Name one with --rank: 0-1."
    with pytest.raises(UsageError, match="rank 1 has 3 steps") as error:
        choose_tensor(store, LOG, 1, None, None)
    assert error.value.hint == "Name one with --step: 1-3."
    assert choose_tensor(store, LOG, 1, 2, None).statistics.nan_count == 2
    with pytest.raises(UsageError):
        choose_tensor(store, LOG, 7, None, None)
