"""Scalars, as the trackers themselves read them."""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import ingest
from ingest.findings.trackers import Tracker
from tests.cli import run_here
from workers.errors import UsageError

# Of packages that are not ours.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

#: Values by name, then step.
Scalars: TypeAlias = dict[str, dict[int, float]]


def expected(url: str, rank: int) -> Scalars:
    """Return what is to be written of a rank: the finite statistics of the first run of each operator."""
    scalars: Scalars = defaultdict(dict)
    for tensor in ingest.open_store(url).tensors(rank=rank, io="output"):
        assert tensor.step is not None
        for name in ("l2_norm", "mean", "std", "min", "max", "nan_count", "pos_inf_count", "neg_inf_count"):
            if math.isfinite(value := getattr(tensor.statistics, name)):
                scalars[f"{name}/{tensor.name}"].setdefault(tensor.step, value)
    return dict(scalars)


def test_tensorboard_loads_the_event_files(url: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    asked = ("export", url, str(tmp_path), "--as", "tensorboard")
    written = json.loads(run_here(*asked, "--json").stdout)
    runs = EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(str(tmp_path)).Reload()
    assert list(runs.Runs()) == ["rank_0", "rank_1"]
    for rank in (0, 1):
        known = expected(url, rank)
        assert set(runs.Runs()[f"rank_{rank}"]["scalars"]) == set(known)
        for name, values in known.items():
            read = {event.step: event.value for event in runs.Scalars(f"rank_{rank}", name)}
            assert read == pytest.approx(values, rel=1e-6, abs=1e-37), name  # they are float32
    assert runs.Scalars("rank_1", "nan_count/Log.Default_net-LogLoss_Log-op0.output.0")[1].value == 2
    assert sum(one["scalars"] for one in written) == sum(
        len(values) for rank in (0, 1) for values in expected(url, rank).values()
    )
    assert "exists" in run_here(*asked, code=2).stderr
    run_here(*asked, "--overwrite")
    assert len(list(tmp_path.rglob("*tfevents*"))) == 2


def test_wandb_keeps_an_offline_run_of_each_rank(url: str, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    run_here("export", url, str(tmp_path), "--as", "wandb")
    read: dict[str, Scalars] = {}
    for path in tmp_path.glob("wandb/offline-run-*/*.wandb"):
        records = [Record.FromString(data) for data in leveldb_records(path.read_bytes())]
        (run,) = {record.run.display_name for record in records if record.HasField("run")}
        scalars: Scalars = defaultdict(dict)
        for record in records:
            if record.HasField("history"):
                items = {".".join(item.nested_key) or item.key: item for item in record.history.item}
                step = int(items["_step"].value_json)
                for name in items.keys() - {"_step", "_runtime", "_timestamp"}:
                    scalars[name][step] = float(items[name].value_json)
        read[run] = dict(scalars)
    assert read == {f"rank {rank}": expected(url, rank) for rank in (0, 1)}


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a `.wandb` file: a log of LevelDB, after a header of seven bytes."""
    at, begun = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # what no header fits into
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        begun += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last piece
            yield begun
            begun = b""


def test_mlflow_has_a_run_of_each_rank(url: str, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    run_here("export", url, str(tmp_path), "--as", "mlflow")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("run.zarr")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"rank 0", "rank 1"}
    for rank in (0, 1):
        run, known = runs[f"rank {rank}"], expected(url, rank)
        assert set(run.data.metrics) == set(known)
        assert run.info.status == "FINISHED"
        for name in list(known)[::50]:
            history = client.get_metric_history(run.info.run_id, name)
            assert {metric.step: metric.value for metric in history} == known[name]


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "mlflow"])
def test_without_the_package_the_extra_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: Tracker
) -> None:
    for name in [tracker, *(name for name in sys.modules if name.startswith(f"{tracker}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"scalars for {tracker} need") as refused:
        ingest.export_scalars(ingest.open_store(url), tmp_path / "out", tracker=tracker)
    assert f"dump-ingest[{tracker}]" in refused.value.hint
    assert not (tmp_path / "out").exists()
