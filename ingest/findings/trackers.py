"""Statistics of outputs as the scalars of experiment trackers: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ingest.findings.tables import free_paths
from ingest.reader.catalog import Catalog, Damage
from ingest.reader.choice import Choice
from ingest.reader.output_file import output_file
from ingest.reader.step import Step
from workers.errors import UsageError
from workers.model import grouped

#: The statistics that are written, each as a scalar of its name.
STATISTICS = ("l2_norm", "mean", "std", "min", "max", "nan_count", "pos_inf_count", "neg_inf_count")

Tracker: TypeAlias = Literal["tensorboard", "wandb", "mlflow"]
#: The scalars of a rank: number of the step, and values by name.
_Scalars: TypeAlias = Iterable[tuple[int, Mapping[str, float]]]


def export_scalars(
    store: Catalog,
    directory: str | Path,
    rank: Choice = None,
    step: Choice = None,
    *,
    tracker: Tracker = "tensorboard",
    overwrite: bool = False,
    damages: list[Damage] | None = None,
) -> dict[Path, int]:
    """Write statistics of outputs as scalars of a tracker, each rank as a run; return their number by path.

    A scalar is called `l2_norm/Conv2d.conv1.output.0`. What is unknown is left out. TensorBoard gets an event
    file for each rank; Weights & Biases an offline run, for `wandb sync`; MLflow a run in `mlflow.db`. Needs
    the package of the tracker, and reads no tensor. Memory: the statistics of a rank.

    Args:
        store: the store, which is listed again.
        directory: created if missing.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        tracker: whose scalars.
        overwrite: replace event files; add runs to those that the directory has.
        damages: takes steps that cannot be read; they raise if it is None.

    Raises:
        UsageError: the package is not installed, a rank or step does not exist, or there are runs already.
        DamagedStore: a step cannot be read.
    """
    package, path_of, write = _TRACKERS[tracker]
    try:
        importlib.import_module(package)  # deferred: an extra
    except ImportError as exc:
        hint = f"Install it: pip install 'dump-ingest[{tracker}]'."
        raise UsageError(f"scalars for {tracker} need the package {package}", hint=hint) from exc
    listed = store.reopened().select(rank, step, damages=damages)
    by_rank = grouped((one.key.rank, one) for one in listed if one.key.step is not None)
    names = dict.fromkeys(path_of.format(rank=number) for number in sorted(by_rank))
    free_paths(directory, names, overwrite=overwrite)
    Path(directory).mkdir(parents=True, exist_ok=True)
    title = store.url.rstrip("/").rpartition("/")[2]
    written: dict[Path, int] = {}
    for number, of_rank in sorted(by_rank.items()):
        path = Path(directory, path_of.format(rank=number))
        scalars = [(int(one.key.step or 0), _scalars_of(one)) for one in of_rank]
        write(path, title, f"rank {number}", scalars)
        written[path] = written.get(path, 0) + sum(len(values) for _, values in scalars)
    return written


def _scalars_of(step: Step) -> dict[str, float]:
    """Return the known statistics of the outputs of a step, by name; the first run of an operator counts."""
    scalars: dict[str, float] = {}
    for tensor in step.tensors():
        if tensor.io != "output":
            continue
        for name in STATISTICS:
            value = getattr(tensor.statistics, name)
            if math.isfinite(value):
                scalars.setdefault(f"{name}/{tensor.name}", float(value))
    return scalars


def _write_events(path: Path, title: str, run: str, scalars: _Scalars) -> None:  # noqa: ARG001
    """Write an event file, whose time is not known, as if a second passed from step to step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(exist_ok=True)
    with output_file(path) as file:
        records = RecordWriter(file)
        records.write(Event(wall_time=0, file_version="brain.Event:2").SerializeToString())
        for step, values in scalars:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=x) for tag, x in values.items()])
            records.write(Event(wall_time=step, step=step, summary=summary).SerializeToString())


def _write_wandb(path: Path, title: str, run: str, scalars: _Scalars) -> None:
    import wandb

    quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
    how: dict[str, Any] = {"mode": "offline", "dir": path.parent, "reinit": "create_new", "settings": quiet}
    with wandb.init(project="dump-ingest", group=title, name=run, **how) as written:
        for step, values in scalars:
            written.log(dict(values), step=step)


def _write_mlflow(path: Path, title: str, run: str, scalars: _Scalars) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(tracking_uri=f"sqlite:///{path.absolute()}")
    known = client.get_experiment_by_name(title)
    experiment = client.create_experiment(title) if known is None else known.experiment_id
    written = client.create_run(experiment, run_name=run).info.run_id
    for step, values in scalars:
        client.log_batch(written, [Metric(name, value, 0, step) for name, value in values.items()])
    client.set_terminated(written)


#: By tracker: the package that writes, the path of a rank below the directory, and what writes a rank.
_TRACKERS: Mapping[str, tuple[str, str, Callable[[Path, str, str, _Scalars], None]]] = {
    "tensorboard": (
        "tensorboard.summary.writer.record_writer",
        "rank_{rank}/events.out.tfevents.0.dump-ingest",
        _write_events,
    ),
    "wandb": ("wandb", "wandb", _write_wandb),
    "mlflow": ("mlflow", "mlflow.db", _write_mlflow),
}
