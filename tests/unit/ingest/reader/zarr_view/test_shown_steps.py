"""A view shows each step in one generation, and names those that it leaves out."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

from ingest.api import open_store
from ingest.reader.zarr_view.shown_steps import ShownSteps
from tests.counted_requests import CountedRequests
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.zarr_views import array_at, view_of
from workers.errors import UsageError
from workers.model import StepKey


def test_a_list_of_steps_reads_their_commits_alone(nan_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = zarr.open_group(view_of(nan_log), mode="r", path="rank_1")
    requests = CountedRequests(monkeypatch)
    assert [(name, step.attrs["tensors"]) for name, step in sorted(group.groups())] == [
        (f"step_{number}", 243) for number in (1, 2, 3)
    ]
    below = {"run/zarr.json", *(f"step_{number}/zarr.json" for number in (1, 2, 3))}
    assert sorted(requests.keys) == sorted(["rank_1", *(f"rank_1/{name}" for name in below)])


def test_a_step_stays_as_it_was_opened(made: MadeDump, store: Path) -> None:
    made.add(np.zeros(4, np.float32), tensor_name("A.a", time=1))
    ingest_directly(made.root, store)
    view = view_of(store)
    array = array_at(view, "rank_0/step_0/A.a/output.0")
    arrived = pickle.dumps(view)
    made.add(np.ones(4, np.float32), tensor_name("A.a", time=1))
    ingest_directly(made.root, store)
    for same in (view, pickle.loads(arrived)):  # noqa: S301
        assert not np.asarray(array_at(same, "rank_0/step_0/A.a/output.0")[:]).any()
    assert not np.asarray(array[:]).any()
    assert np.asarray(array_at(view_of(store), "rank_0/step_0/A.a/output.0")[:]).all()


def test_partial_steps_are_refused_and_named_unless_asked_for(made: MadeDump, store: Path) -> None:
    made.add(np.zeros(4, np.float32), tensor_name("A.a"), step=1)
    made.add(np.zeros(4, np.float32), tensor_name("A.a"), step=2)
    made.add(b"\x93NUMPY, but no more", tensor_name("B.b"), step=2)
    ingest_directly(made.root, store)
    view = view_of(store)
    assert sorted(zarr.open_group(view, path="rank_0", mode="r").group_keys()) == ["step_1"]
    assert [str(left) for left in view.left_out] == ["rank 0 step 2: partial: 1 file quarantined"]
    with pytest.raises(UsageError, match="rank 0 step 2 is partial: 1 file quarantined"):
        zarr.open_group(view, path="rank_0/step_2", mode="r")
    whole = view_of(store, include_partial=True)
    assert whole.left_out == []
    assert list(zarr.open_group(whole, path="rank_0/step_2", mode="r").group_keys()) == ["A.a"]


def test_what_is_damaged_or_not_committed_is_named(many: Path) -> None:
    (many / "rank_1/step_3/zarr.json").write_text("{}")
    (many / "rank_2/step_7/zarr.json").unlink()
    damaged, uncommitted = ShownSteps(open_store(many), include_partial=False).left_out()
    assert damaged.key == StepKey(1, 3)
    assert damaged.reason.startswith("damaged: ")
    assert str(uncommitted) == "rank 2 step 7: not committed"


def test_few_indexes_are_kept(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.reader.zarr_view.shown_steps._INDEXES_KEPT", 2)
    steps = ShownSteps(open_store(many), include_partial=False)
    keys = [StepKey(0, step) for step in range(3)]
    for key in keys:
        assert steps.nodes(key) is not None
    assert [steps.is_open(key) for key in keys] == [False, True, True]
    assert all(steps.is_known(key) for key in keys)
    assert steps.nodes(keys[0]) is not None
    assert not steps.is_open(keys[1])


def test_pinned_generations_are_shown(made: MadeDump, store: Path) -> None:
    path = made.add(np.zeros(4, np.float32))
    ingest_directly(made.root, store)
    before = open_store(store).step(0, 0).commit
    path.write_bytes(path.read_bytes()[:-4] + np.float32(7).tobytes())
    ingest_directly(made.root, store)
    steps = ShownSteps(open_store(store), include_partial=False)
    steps.pin([before])
    (step,) = steps.of_rank(0)
    assert step.fingerprint == before.fingerprint
    assert steps.commits == [before]
