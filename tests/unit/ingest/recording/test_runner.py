"""Programs that are recorded without changing them: trained by trainers, run by the runner."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ingest
from ingest.environment import TRIGGER_TOKEN_VARIABLE
from ingest.page.watchers import Watchers
from ingest.recording import black_box
from ingest.recording.__main__ import options_of
from ingest.recording.training import RecordedTraining
from ingest.service.live_watcher import fetch_watcher, get, metrics_of
from ingest.service.service import Service
from tests import recordings
from tests.page_server import RunningPage
from tests.services import served_watcher
from workers.errors import UsageError

# `python -m ingest.recording train.py` records a script that knows nothing of it.


SCRIPT = """
import sys
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
other = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    other(torch.ones(1, 2))
    loss = nn.MSELoss()(model(torch.ones(2, 4)), torch.ones(2, 1))
    loss.backward()
    optimizer.step()
    if step == 7:
        raise ZeroDivisionError("in the script")
print("done", __name__)
"""


def _trained(
    place: Path, script: str, program: str, options: str, *, named: str = "train.py", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a script by a module of Python, with the recorder in the environment."""
    (place / "train.py").write_text(script)
    # The command forbids its child processes to import from the working directory.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, "-m", *program.split(), *named.split(), "20"],
        cwd=place,
        env={**inherited, "OMP_NUM_THREADS": "1", "DUMP_INGEST_RECORD": f"run-dump,{options}", **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("named", ["train.py", "-m train"])
def test_a_script_or_module_is_recorded_from_its_second_update_on(
    named: str, torch: Any, tmp_path: Path
) -> None:
    del torch
    run = _trained(tmp_path, SCRIPT, "ingest.recording", "black_box=2,after=0,keep=1MiB", named=named)
    assert run.returncode == 1, run.stderr
    assert "ZeroDivisionError: in the script" in run.stderr, run.stderr
    assert "done" not in run.stdout
    recorded = tmp_path / "run-dump/recorded/rank_0"
    assert recordings.steps(recorded) == list(range(1, 9))
    names = {line["op_name"] for line in recordings.lines(recorded, 1)}
    assert {"0", "2"} <= names
    assert "ZeroDivisionError: in the script" in recordings.mark(recorded, 8)["incident"]


RESTARTED = """
import os
import torch
from pathlib import Path
from torch import distributed, nn
restarts, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
# Gloo does not find its peers again in the store of the first attempt.
store = f"file://{Path.cwd()}/init-{restarts}"
distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
first, checkpoint = 0, Path("checkpoint.pt")
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, 12):
    if restarts == 0 and step == 8 and rank == 1:
        raise ZeroDivisionError("in the script")
    optimizer.zero_grad()
    model(torch.full((2, 4), float(step))).square().mean().backward()
    optimizer.step()
    if step == 4 and rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 5}, checkpoint)
distributed.destroy_process_group()
"""


def test_a_restart_by_torchrun_goes_on_with_the_steps_that_the_optimizer_counts(
    torch: Any,  # noqa: ARG001  (it must be there)
    tmp_path: Path,
) -> None:
    launched = "torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=1 -m ingest.recording"
    run = _trained(tmp_path, RESTARTED, launched, "black_box=2,after=1,keep=1MiB")
    assert run.returncode == 0, run.stderr
    for rank in (0, 1):
        (recorded,) = (tmp_path / "run-dump/recorded").glob(f"rank_{rank}.*")
        # The step behind the last update has the parameters that it made.
        assert recordings.steps(recorded) == list(range(1, 13))
        saved = [step for step in range(1, 9) if list((recorded / f"step_{step}").glob("*.safetensors"))]
        assert saved in ([6, 7, 8], [7, 8]), "of the first attempt"


def test_a_restart_is_not_recorded_if_nobody_knows_where_it_goes_on(
    torch: Any,  # noqa: ARG001  (it must be there)
    tmp_path: Path,
) -> None:
    run = _trained(tmp_path, SCRIPT, "ingest.recording", "black_box=2", TORCHELASTIC_RESTART_COUNT="1")
    assert "ZeroDivisionError: in the script" in run.stderr
    assert "nothing is recorded: the optimizer does not count its steps" in run.stderr
    assert not (tmp_path / "run-dump").exists()


def test_an_argument_that_does_not_exist_is_named() -> None:
    assert options_of("d,every=10,ring=rings") == ("d", {"every": 10, "ring": "rings"})
    with pytest.raises(UsageError, match="argument 'color'"), ingest.record_training("d", color="red"):
        pass


# The black box in the loops of trainers, as in docs/pytorch.md, with the real packages if they are there.


#: Which update has a bad record, of how many, and the steps that are saved of it with `BOX`.
BAD, UPDATES = 6, 10
BOX: dict[str, Any] = {"black_box": 3, "after": 1, "keep": "4MiB"}
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


def check(training: RecordedTraining) -> None:
    # The gradient of the first layer, or what it returns: a NaN is in both, and no step before.
    assert training.recorder is not None
    ((why, steps),) = training.recorder.incidents.items()
    assert why.endswith(f"(rank 0, step {BAD})")
    assert steps == SAVED
    # Nobody knows the model before the first update.
    assert recordings.steps(training.recorder.directory)[: UPDATES - 2] == list(range(1, UPDATES - 1))


def test_transformers(torch: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
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
    trainer = transformers.Trainer(net(torch, torch.nn.Module), arguments, train_dataset=records(torch))
    with ingest.record_training(tmp_path / "dump", **BOX) as training:
        trainer.train()
    check(training)


# Lightning asks PyTorch for what has another name in later versions.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lightning(torch: Any, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    trainer = lightning.Trainer(
        max_steps=UPDATES,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    with ingest.record_training(tmp_path / "dump", **BOX) as training:
        trainer.fit(net(torch, lightning.LightningModule), torch.utils.data.DataLoader(records(torch)))
    check(training)


def test_accelerate(torch: Any, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = net(torch, torch.nn.Module)
    loader = torch.utils.data.DataLoader(records(torch))
    model, optimizer, loader = accelerator.prepare(model, model.configure_optimizers(), loader)
    with ingest.record_training(tmp_path / "dump", **BOX) as training:
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
    check(training)


def test_torchtitan(torch: Any, tmp_path: Path) -> None:
    """Its optimizer, which steps several others, in a loop as that of its `Trainer.train_step`."""
    optimizers = pytest.importorskip("torchtitan.components.optimizer")
    model = net(torch, torch.nn.Module)
    groups = [
        optimizers.ParamGroupConfig(pattern=pattern, optimizer_name=name, optimizer_kwargs={"lr": 1e-3})
        for pattern, name in (("first", "Adam"), ("second", "AdamW"))
    ]
    config = optimizers.OptimizersContainer.Config(param_groups=groups, implementation="for-loop")
    optimizer = optimizers.OptimizersContainer(config, model_parts=[model])
    with ingest.record_training(tmp_path / "dump", **BOX) as training:
        for record in records(torch):
            optimizer.zero_grad()
            model(**record)["loss"].backward()
            optimizer.step()
    check(training)


def test_megatron_whose_optimizer_updates_copies_in_full_precision(torch: Any, tmp_path: Path) -> None:
    """As `Float16OptimizerWithFloat16Params` and `DistributedDataParallel` of Megatron-Core 0.16 do.

    Which need CUDA: gradients are summed in `main_grad`, and `main_param` is what is updated.
    """
    model = net(torch, torch.nn.Module).bfloat16()
    for parameter in model.parameters():
        parameter.main_param = parameter.detach().clone().float()
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)

        def add(each: Any) -> None:
            each.main_grad += each.grad
            each.grad = None

        parameter.register_post_accumulate_grad_hook(add)
    optimizer = torch.optim.SGD([each.main_param for each in model.parameters()], lr=1e-3)
    with ingest.record_training(tmp_path / "dump", **BOX) as training:
        for record in records(torch):
            model(x=record["x"].bfloat16())["loss"].backward()
            for each in model.parameters():
                each.main_param.grad = each.main_grad.clone()
                each.main_grad.zero_()
            optimizer.step()
            for each in model.parameters():
                each.data.copy_(each.main_param.data)
    check(training)
    assert training.recorder is not None
    lines = recordings.lines(training.recorder.directory, 3)
    of_weight = [line for line in lines if line["op_name"] == "first.weight"]
    told = {line["op_type"]: (line["dtype"], line["shape"]) for line in of_weight}
    assert told == {"Parameter": ("bfloat16", [4, 4]), "Gradient": ("float32", [4, 4])}


# What black boxes of a running job hold is seen at the watcher and on the page, and triggered from there.


TOKEN = "a-token-of-sixteen-letters"  # noqa: S105  (opens the watcher of this test alone)


def look(service: Service) -> None:
    for _ in range(3):
        service.schedule.scan_soon()
        service.tick()


def post(url: str, token: str = "", method: str = "POST") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310  (http)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  (the same)
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_the_ring_and_its_incidents_are_seen_and_whoever_has_the_token_triggers(
    torch: Any, nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del torch
    dump, store = tmp_path / "run-dump", tmp_path / "run.zarr"
    monkeypatch.setattr(black_box, "_IDLE_S", 0.01)
    monkeypatch.setenv(TRIGGER_TOKEN_VARIABLE, TOKEN)
    net = nets.Net()
    with ingest.record(net, dump, black_box=4, keep="10MiB", budget="1MiB") as recorder:
        nets.train(net, 9)
        with served_watcher(dump, store) as (url, service):
            look(service)
            (ring,) = fetch_watcher(url, 30).boxes.rings
            # The step that runs is not one of them yet.
            assert (ring.rank, ring.steps, ring.left_out) == (0, (4, 5, 6, 7), 0)
            assert 0 < ring.nbytes <= ring.keep_nbytes == 10 << 20
            assert (ring.saved_nbytes, ring.budget_nbytes) == (0, 1 << 20)
            assert ring.overhead == pytest.approx(recorder.overhead, abs=1)
            trigger = f"{url}/trigger?why=the+loss+looks+odd"
            assert [post(trigger, token) for token in ("", "another")] == [401, 401]
            assert post(trigger, TOKEN, "GET") == 405
            assert not recorder.incidents
            assert post(trigger, TOKEN) == 202
            deadline = time.monotonic() + 60
            while not recorder.incidents and time.monotonic() < deadline:
                nets.train(net, 1)
                time.sleep(0.02)
            nets.train(net, 4)
            time.sleep(0.1)
            look(service)
            watcher = fetch_watcher(url, 30)
            (incident,) = watcher.boxes.incidents
            assert incident.why == "the loss looks odd"
            values = metrics_of(get(f"{url}/metrics", 30)[1].decode())
            (ring,) = watcher.boxes.rings
            assert 0 < ring.saved_nbytes == values["dump_ingest_watcher_box_saved_bytes"]["0"]
            assert values["dump_ingest_watcher_box_incidents"][""] == 1
            with RunningPage(store, watchers=Watchers((url,), 0.2)) as page:
                live, in_store = "", f"<td>{incident.first}-{incident.last}</td>"
                while in_store not in live and time.monotonic() < deadline:
                    look(service)
                    live = page.get("/runs/run.zarr/live").text
            for words in ("Black box", incident.why, in_store, "of 10.0 MiB"):
                assert words in live, words
    with served_watcher(dump, store) as (url, service):
        look(service)
        boxes = fetch_watcher(url, 30).boxes
        assert (boxes.rings, boxes.incidents) == ((), (incident,))
        assert post(f"{url}/trigger", TOKEN) == 409
    monkeypatch.delenv(TRIGGER_TOKEN_VARIABLE)
    with served_watcher(dump, store) as (url, _):
        assert [post(f"{url}/trigger", token) for token in ("", TOKEN)] == [401, 401]
