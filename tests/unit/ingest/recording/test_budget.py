"""With `overhead`, as many modules are looked at in a step as that pays for, in turn; the store says so."""

import math
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ingest
from ingest.recording.recorder import LookBudget
from tests import recordings
from tests.pipeline import ingest_directly


@pytest.fixture
def net(torch: Any, nets: ModuleType) -> Any:
    torch.manual_seed(0)
    return nets.Net()


@given(
    st.floats(0.005, 0.5), st.integers(1, 40), st.floats(1e-4, 0.2), st.lists(st.floats(0.5, 2), min_size=300)
)
def test_looking_costs_no_more_than_its_share_and_comes_round(
    share: float, modules: int, cost_s: float, pace: list[float]
) -> None:
    """A step takes about a second; to look at a module takes up to a fifth of that, more or less by turns."""
    budget, looked = LookBudget(share, [str(number) for number in range(modules)]), Counter[str]()
    spent_s = []
    for number, factor in enumerate(pace[:300]):
        chosen = budget.choose()
        assert number or len(chosen) == modules
        looked.update(chosen)
        spent_s.append(len(chosen) * cost_s * factor)
        budget.charge(spent_s[-1], 1.0)
    # What a module costs is not known before; what was too much is made good later.
    assert sum(spent_s[1:]) <= share * len(spent_s[1:]) + 8 * max(cost_s, share)
    assert max(looked.values()) - min(looked.values()) <= 1
    if modules * cost_s * 2 <= share:
        assert min(looked.values()) >= 290


def test_what_was_not_looked_at_is_in_the_store_as_not_known(
    net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    """A NaN in such a module: nothing says that the step is clean."""

    def plant(step: int) -> None:
        net.second.rescale.broken = step == 5

    with ingest.record(net, tmp_path / "dump", overhead=1e-9) as recorder:
        nets.train(net, 8, before=plant)
    assert recordings.mark(recorder.directory, 0).get("not_looked_at", 0) == 0
    told = recordings.mark(recorder.directory, 5)
    assert told["not_looked_at"] == 7
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    store = ingest.open_store(tmp_path / "run.zarr")
    first, fifth = (
        [tensor.name for tensor in store.tensors("Module.*.output.0", step=step)] for step in (0, 5)
    )
    assert fifth == first
    assert all(math.isnan(tensor.statistics.nan_count) for tensor in store.tensors(step=5))
    answer = ingest.origin(store)
    assert any("it is not known whether they hold NaN or Inf" in note for note in answer.notes)


def test_with_room_for_all_of_it_all_is_looked_at(net: Any, nets: ModuleType, tmp_path: Path) -> None:
    with ingest.record(net, tmp_path, overhead=0.9) as recorder:
        nets.train(net, 6, before=lambda _: time.sleep(0.2))
    assert [recordings.mark(recorder.directory, step).get("not_looked_at", 0) for step in range(6)] == [0] * 6
    assert 0 < recorder.overhead < 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overhead": 3}, "overhead=3 is not a share"),
        ({"overhead": 0.03, "of": "functions"}, "functions cannot be looked at in turn"),
    ],
)
def test_an_overhead_that_cannot_be_kept_is_refused(
    options: dict[str, Any], message: str, net: Any, tmp_path: Path
) -> None:
    with pytest.raises(ingest.UsageError, match=message):
        ingest.record(net, tmp_path, **options)
