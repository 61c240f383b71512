"""The black box in the loops of trainers, as in docs/pytorch.md, with the real packages if they are there."""

from pathlib import Path
from typing import Any

import pytest

import ingest
from tests import recordings

#: Which update has a bad record, of how many, and the steps that are saved of it with `BOX`.
BAD, UPDATES = 6, 10
BOX: dict[str, Any] = {"black_box": 3, "after": 1, "keep": "4MiB", "advance": "optimizer"}
SAVED = [4, 5, 6, 7]


def records(torch: Any) -> Any:
    """Return a data set of one record for each update, and a bad one among them."""
    inputs = torch.ones(UPDATES, 4)
    inputs[BAD] = torch.nan
    return [{"x": row} for row in inputs]


def net(torch: Any, base: type[Any]) -> Any:
    class Net(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            return {"loss": self.second(self.first(x)).square().mean()}

        def training_step(self, batch: Any, _number: int) -> Any:
            return self(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    return Net()


def check(recorder: ingest.Recorder) -> None:
    # The gradient of the first layer, or what it returns: a NaN is in both, and no step before.
    ((why, steps),) = recorder.incidents.items()
    assert why.endswith(f"(rank 0, step {BAD})")
    assert steps == SAVED
    assert recordings.steps(recorder.directory)[: UPDATES - 1] == list(range(UPDATES - 1))


def test_transformers(torch: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Record(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            model = trainer.model_wrapped
            first = state.global_step
            self.recorder = ingest.record(model, tmp_path / "dump", first_step=first, **BOX).__enter__()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.recorder.__exit__(None, None, None)

    record = Record()
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        max_steps=UPDATES,
        per_device_train_batch_size=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        data_seed=0,
        train_sampling_strategy="sequential",
        max_grad_norm=0,
    )
    trainer = transformers.Trainer(
        net(torch, torch.nn.Module), arguments, train_dataset=records(torch), callbacks=[record]
    )
    trainer.train()
    check(record.recorder)


# Lightning asks PyTorch for what has another name in later versions.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lightning(torch: Any, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Record(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, trainer: Any, _module: Any) -> None:
            model, first = trainer.strategy.model, trainer.global_step
            self.recorder = ingest.record(model, tmp_path / "dump", first_step=first, **BOX).__enter__()

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  (a hook)
            self.recorder.__exit__(None, None, None)

    record = Record()
    trainer = lightning.Trainer(
        max_steps=UPDATES,
        accelerator="cpu",
        callbacks=[record],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(net(torch, lightning.LightningModule), torch.utils.data.DataLoader(records(torch)))
    check(record.recorder)


def test_accelerate(torch: Any, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = net(torch, torch.nn.Module)
    loader = torch.utils.data.DataLoader(records(torch))
    model, optimizer, loader = accelerator.prepare(model, model.configure_optimizers(), loader)
    with ingest.record(model, tmp_path / "dump", **BOX) as recorder:
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
    check(recorder)
