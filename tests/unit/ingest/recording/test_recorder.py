"""What the recorder writes: tensors, functions, budgets, and what it leaves alone."""

import math
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ingest
from ingest.recording import writer
from ingest.recording.recorder import LookBudget
from ingest.settings import load
from tests import recordings
from tests.stores import ingest_and_open, ingest_directly
from workers.model import StepKey

# A recorded run is ingested as any other, and tells where a NaN was born.


MODELS = Path(__file__).parents[3] / "torch_models.py"
PLANTED = next(
    number
    for number, line in enumerate(MODELS.read_text().splitlines(), 1)
    if line.endswith("# the planted line")
)


@pytest.fixture
def net(torch: Any, nets: ModuleType) -> Iterator[Any]:
    torch.manual_seed(0)
    yield nets.Net()
    nets.Rescale.broken = False


def record_planted(net: Any, nets: ModuleType, dump: Path, **options: Any) -> None:
    def plant(step: int) -> None:
        net.second.rescale.broken = step == 3

    with ingest.record(net, dump, steps=range(2, 5), **options):
        nets.train(net, 6, before=plant)


@pytest.mark.parametrize("what", ["stats", "tensors"])
def test_the_module_and_the_line_of_a_planted_infinity_are_named(
    what: str, net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    record_planted(net, nets, tmp_path / "run-dump", what=what)
    summaries = ingest_directly(tmp_path / "run-dump", tmp_path / "run.zarr")
    assert [(summary.key, summary.status) for summary in summaries] == [
        (StepKey(0, step), "complete") for step in (2, 3, 4)
    ]
    assert all(bool(summary.tensors) == (what == "tensors") for summary in summaries)
    store = ingest.open_store(tmp_path / "run.zarr")
    assert list(store.verify()) == []
    answer = ingest.origin(store)
    assert (answer.rank, answer.step) == (0, 3)
    assert (answer.op_type, answer.op_name) == ("Module.Rescale", "second.rescale")
    assert answer.source is not None
    assert Path(answer.source.file) == MODELS
    assert answer.source.code == "def forward(self, x: Any) -> Any:"
    assert [frame.code for frame in answer.source.stack][-2] == "return x + scale * self.rescale(self.fc(x))"


def test_functions_name_the_very_line_and_the_reason(net: Any, nets: ModuleType, tmp_path: Path) -> None:
    record_planted(net, nets, tmp_path / "run-dump", what="tensors", of=("outputs", "functions"))
    ingest_directly(tmp_path / "run-dump", tmp_path / "run.zarr")
    answer = ingest.origin(ingest.open_store(tmp_path / "run.zarr"))
    assert (answer.op_type, answer.op_name) == ("Torch.log", "second.rescale.log.0")
    assert answer.source is not None
    assert (Path(answer.source.file), answer.source.line) == (MODELS, PLANTED)
    assert "logarithm of a number that is not positive" in str(answer)
    # What the optimizer calls is not the code of the model.
    assert not [name for name in recordings.names(tmp_path / "run-dump/recorded/rank_0", 2) if "add_" in name]


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({"steps": range(1, 3)}, [1, 2]),
        ({"every": 2}, [0, 2, 4]),
        ({"steps": [4, 0]}, [0, 4]),
        ({"steps": range(3, 10**12)}, [3, 4]),  # too many to look at each
        ({"steps": range(4, 0, -2)}, [2, 4]),
        ({"first_step": 100, "steps": range(102, 200)}, [102, 103, 104]),
        ({"advance": "optimizer", "steps": range(1, 3)}, [1, 2]),
    ],
)
def test_only_the_steps_that_are_asked_for_are_recorded(
    options: dict[str, Any], recorded: list[int], net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    with ingest.record(net, tmp_path, of="outputs", **options) as recorder:
        nets.train(net, 5)
    assert recorder.recorded == recordings.steps(recorder.directory) == recorded
    assert all(recordings.mark(recorder.directory, step)["tensors"] == 7 for step in recorded)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_step_of_several_calls_is_one_step_if_it_is_told(net: Any, torch: Any, tmp_path: Path) -> None:
    with ingest.record(net, tmp_path, of="outputs", modules="model", advance="manual") as recorder:
        for _ in range(2):
            net(torch.ones(1, 8))
            net(torch.ones(1, 8))
            recorder.save("loss", {"mean": torch.ones(())})
            recorder.advance()
    assert recordings.names(recorder.directory, 0) == ["model.output.0"] * 2 + ["saved.loss"]
    ingest_directly(tmp_path, tmp_path / "run.zarr")
    tensors = ingest.open_store(tmp_path / "run.zarr").tensors(step=1)
    assert [tensor.name for tensor in tensors] == [
        "Module.Net.model.output.0",
        "Module.Net.model.output.0#1",
        "saved.loss.output.mean.0",
    ]


def test_parameters_are_those_that_a_step_begins_with(torch: Any, tmp_path: Path) -> None:
    """What another rank sends after the optimizer, or what an average replaces, belongs to the next step."""
    net = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with ingest.record(net, tmp_path, of="parameters", what="tensors", advance="optimizer"):
        for step in range(2):
            torch.nn.init.constant_(net.weight, step)
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        torch.nn.init.constant_(net.weight, 2)
    store = ingest_and_open(tmp_path, tmp_path / "run.zarr")
    assert [tensor.read().tolist() for tensor in store.tensors()] == [[[0, 0]], [[1, 1]], [[2, 2]]]


@pytest.mark.parametrize("kind", ["dict", "tuple", "dataclass", "namedtuple", "nested"])
def test_outputs_of_any_structure_are_looked_into(
    kind: str, nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    make, expected = {
        "dict": (lambda x: {"logits": x, "none": None, "n": 3}, ["output.logits.0"]),
        "tuple": (lambda x: (x, [x, "text"]), ["output.0", "output.1.0"]),
        "dataclass": (nets.Answer, ["output.logits.0"]),
        "namedtuple": (lambda x: nets.Pair(x, x), ["output.left.0", "output.right.0"]),
        "nested": (lambda x: {"a": ({"b": x},)}, ["output.a.0.b.0"]),
    }[kind]
    with ingest.record(nets.Returns(make), tmp_path, of="outputs") as recorder:
        recorder._model(torch.ones(2))
    assert recordings.names(recorder.directory, 0) == [f"model.{name}" for name in expected]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_runs_again_is_told_from_the_first_run(
    reentrant: bool, nets: ModuleType, tmp_path: Path
) -> None:
    net = nets.Net(reentrant=reentrant)
    with ingest.record(net, tmp_path, of=("outputs", "gradients")) as recorder:
        nets.train(net, 2)
    assert recorder.recorded == [0, 1]
    names = recordings.names(recorder.directory, 1)
    assert names.count("second.fc.output.0") == names.count("second.fc.output.0*") == 1
    assert names.count("Gradient.second.fc.output") == names.count("Gradient.first.fc.output") == 1
    assert names.index("model.output.0") < names.index("second.fc.output.0*")
    assert names.index("second.fc.output.0*") < names.index("Gradient.second.fc.output")


def test_an_exception_in_the_loop_passes_and_the_step_says_so(
    net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ingest.record(net, tmp_path, of="outputs") as recorder:
        nets.train(net, 3, before=fail)
    assert recordings.mark(recorder.directory, 0) == {"tensors": 7}
    assert recordings.mark(recorder.directory, 1) == {
        "tensors": 7,
        "ended": "ZeroDivisionError: ",
    }
    store = ingest_and_open(tmp_path, tmp_path / "run.zarr")
    assert [step.status for step in store.select()] == ["complete", "complete"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_an_exception_in_the_model_leaves_what_led_to_it(
    nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("shapes")

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), nets.Returns(fail))
    with (
        pytest.raises(RuntimeError, match="shapes"),
        ingest.record(net, tmp_path, of=("inputs", "outputs")) as recorder,
    ):
        net(torch.ones(1, 8))
    assert recordings.names(recorder.directory, 0) == [
        "model.input.0",
        "0.input.0",
        "0.output.0",
        "1.input.0",
    ]
    assert recordings.mark(recorder.directory, 0)["ended"] == "RuntimeError: shapes"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that takes elements only once this is set."""
    opened, write = threading.Event(), writer._write_safetensors

    def wait_and_write(path: Path, tensors: Any) -> None:
        assert opened.wait(60)
        write(path, tensors)

    monkeypatch.setattr(writer, "_write_safetensors", wait_and_write)
    return opened


def test_a_full_queue_leaves_out_elements_keeps_statistics_and_says_so(
    net: Any, torch: Any, gate: threading.Event, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "what": "tensors",
        "of": "outputs",
        "queue_nbytes": 5000,
        "when_full": "leave out",
    }
    with (  # noqa: PT031  (the warning comes at the end of the recording)
        pytest.warns(RuntimeWarning, match="tensors were left out because the queue was full"),
        ingest.record(net, tmp_path, **options) as recorder,
    ):
        for _ in range(3):
            net(torch.ones(4, 8))
        assert recorder._writer.queue.held_nbytes <= 5000 + 21 * 1024
        gate.set()
    assert 0 < recorder.left_out < 21
    marks = [recordings.mark(recorder.directory, step) for step in range(3)]
    assert [told["tensors"] for told in marks] == [7, 7, 7]
    assert sum(told.get("left_out", 0) for told in marks) == recorder.left_out
    summaries = ingest_directly(tmp_path, tmp_path / "run.zarr")
    assert sum(summary.statistics_only for summary in summaries) == recorder.left_out
    assert sum(summary.tensors for summary in summaries) == 21 - recorder.left_out
    store = ingest.open_store(tmp_path / "run.zarr")
    assert not np.isnan([tensor.statistics.mean for tensor in store.tensors()]).any()


def test_a_full_queue_delays_the_training_if_it_may_wait(
    net: Any, torch: Any, gate: threading.Event, tmp_path: Path
) -> None:
    ended = threading.Event()

    def run() -> None:
        with ingest.record(net, tmp_path, what="tensors", of="outputs", queue_nbytes=5000):
            net(torch.ones(4, 8))
            net(torch.ones(4, 8))
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert not ended.wait(0.2)
    gate.set()
    assert ended.wait(60)
    summaries = ingest_directly(tmp_path, tmp_path / "run.zarr")
    assert [(summary.tensors, summary.statistics_only) for summary in summaries] == [(7, 0), (7, 0)]


def test_a_directory_that_cannot_be_written_is_said_before_the_training(
    net: Any, other_user: int, tmp_path: Path
) -> None:
    os.seteuid(other_user)
    try:
        with pytest.raises(ingest.UsageError, match=r"recorded/rank_0 cannot be written: Permission denied"):
            ingest.record(net, tmp_path / "run-dump").__enter__()
    finally:
        os.seteuid(0)


def test_steps_that_exist_are_not_mixed_with_new_ones(net: Any, nets: ModuleType, tmp_path: Path) -> None:
    for first_step in (0, 5):
        with ingest.record(net, tmp_path, every=2, first_step=first_step):
            nets.train(net, 4)
    with pytest.raises(ingest.UsageError, match="already has step 6 of rank 0") as error:
        ingest.record(net, tmp_path, first_step=5).__enter__()
    assert error.value.hint == "Record into another directory, or remove those steps first."


def test_an_update_of_several_optimizers_and_of_one_within_another_is_one_step(
    torch: Any, tmp_path: Path
) -> None:
    class Outer(torch.optim.SGD):  # type: ignore[misc]  # as ZeroRedundancyOptimizer does
        def step(self, closure: Any = None) -> Any:
            return inner.step(closure)

    net = torch.nn.Linear(2, 1)
    inner, of_bias = (torch.optim.SGD([each], 0.1) for each in (net.weight, net.bias))
    outer = Outer([net.weight], 0.1)
    with ingest.record(net, tmp_path, advance="optimizer") as recorder:
        for _ in range(3):
            net(torch.ones(2, 2)).sum().backward()
            outer.step()
            of_bias.step()
    assert recordings.steps(recorder.directory) == [0, 1, 2, 3]
    names = [recordings.names(recorder.directory, step) for step in range(4)]
    gradients = [sorted(name for name in of_step if name.startswith("Gradient")) for of_step in names]
    assert gradients[:3] == [gradients[0]] * 3
    assert {"Gradient.bias", "Gradient.weight"} <= {*gradients[0]}
    assert gradients[3] == []


@pytest.mark.parametrize(("every", "recorded"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4])])
def test_a_part_that_is_called_by_itself_after_an_update_begins_a_step(
    every: int, recorded: list[int], torch: Any, tmp_path: Path
) -> None:
    """As of a model that is called without its DistributedDataParallel in some steps."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with ingest.record(net, tmp_path, advance="optimizer", every=every) as recorder:
        for step in range(4):
            optimizer.zero_grad()
            x = torch.full((3, 2), float(step))
            (net[1](net[0](x)) if step % 2 else net(x)).sum().backward()
            optimizer.step()
    assert recordings.steps(recorder.directory) == recorded
    for step in recorded[:-1]:
        inputs = [
            line["statistics"]["mean"]
            for line in recordings.lines(recorder.directory, step)
            if (line["op_name"], line["io"]) == ("0", "input")
        ]
        assert inputs == [step]


def test_a_job_goes_on_in_the_step_that_its_last_update_began(torch: Any, tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    settings = load(quiet_s=0.1, workers=1).settings
    for first_step in (0, 2):
        with ingest.record(net, tmp_path / "dump", advance="optimizer", first_step=first_step):
            for _ in range(2):
                net(torch.ones(2, 2)).sum().backward()
                optimizer.step()
        ingest.ingest_dump(tmp_path / "dump", tmp_path / "run.zarr", settings=settings)
    store = ingest.open_store(tmp_path / "run.zarr")
    counts = [len(list(store.tensors(step=step))) for step in store.steps]
    assert counts == [*[counts[0]] * 4, 2]
    assert counts[0] > 2


def test_a_recorder_that_was_used_is_refused_and_hooks_nothing(
    net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    recorder = ingest.record(net, tmp_path, steps=[0])
    with recorder:
        nets.train(net, 1)
    shutil.rmtree(recorder.directory)
    with pytest.raises(ingest.UsageError, match="was used before") as error:
        recorder.__enter__()
    assert error.value.hint == "Call `ingest.record` again for another recording."
    assert not net._forward_pre_hooks


def test_after_a_backward_pass_that_failed_the_next_one_has_gradients_of_parameters(
    net: Any, torch: Any, tmp_path: Path
) -> None:
    """For instance if a training catches that it has run out of memory, and tries a smaller batch."""

    def fail(_: Any) -> None:
        message = "out of memory"
        raise MemoryError(message)

    with ingest.record(net, tmp_path, of="gradients", advance="manual") as recorder:
        output = net(torch.ones(1, 8))
        with pytest.raises(MemoryError), net.first.fc.bias.register_hook(fail):
            output.sum().backward()
        net.zero_grad()
        net(torch.ones(1, 8)).sum().backward()
    assert "Gradient.first.fc.weight" in recordings.names(recorder.directory, 0)


def test_a_backward_pass_of_a_parameter_that_no_module_reads_is_recorded(torch: Any, tmp_path: Path) -> None:
    """As of the temperature of SAC, whose loss is added up over micro-batches."""
    model = torch.nn.ModuleDict({"actor": torch.nn.Linear(2, 1)})
    model.register_parameter("log_alpha", torch.nn.Parameter(torch.zeros(())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ingest.record(model, tmp_path, of="gradients", advance="manual") as recorder:
        for _ in range(2):
            model["actor"](torch.ones(1, 2)).sum().backward()
            (3 * model.log_alpha).backward()
        optimizer.step()
    assert recordings.names(recorder.directory, 0).count("Gradient.log_alpha") == 2


def test_gradients_that_are_set_by_hand_are_those_that_the_optimizer_reads(
    net: Any, torch: Any, tmp_path: Path
) -> None:
    """As where several losses pull into different directions, and their gradients are projected."""
    parameters = dict(net.named_parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with ingest.record(net, tmp_path, of="gradients", advance="optimizer", what="tensors") as recorder:
        gradients = torch.autograd.grad(net(torch.ones(1, 8)).sum(), list(parameters.values()))
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = 2 * gradient
        optimizer.step()
    assert {f"Gradient.{name}" for name in parameters} <= {*recordings.names(recorder.directory, 0)}


def test_a_gradient_that_no_pass_of_the_step_reached_is_not_one_of_the_step(
    torch: Any, tmp_path: Path
) -> None:
    """As that of an actor that is updated in every second step, and set to zero just before its own pass."""
    net = torch.nn.ModuleDict({"critic": torch.nn.Linear(2, 1), "actor": torch.nn.Linear(2, 1)})
    with ingest.record(net, tmp_path, of="gradients", advance="manual") as recorder:
        for step in range(3):
            for name in ("critic",) if step == 1 else ("critic", "actor"):
                for parameter in net[name].parameters():
                    parameter.grad = None
                net[name](torch.ones(1, 2)).sum().backward()
            recorder.advance()
    reached = [{*recordings.names(recorder.directory, step)} for step in range(3)]
    assert ["Gradient.actor.weight" in names for names in reached] == [True, False, True]
    assert all("Gradient.critic.weight" in names for names in reached)


def test_a_directory_that_another_process_uses_is_said(net: Any, nets: ModuleType, tmp_path: Path) -> None:
    def appear(step: int) -> None:
        (tmp_path / "recorded" / "rank_0" / "step_1").mkdir(exist_ok=step == 1)

    with (
        pytest.warns(RuntimeWarning, match="step_1 exists: another process records there, too"),
        ingest.record(net, tmp_path),
    ):
        nets.train(net, 2, before=appear)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": [7]}, "none of the steps that were asked for ran; the last one was 1"),
        ({"modules": "layer.*"}, r"modules='layer\.\*' fits no name"),
    ],
)
def test_a_recording_of_nothing_says_why(
    options: dict[str, Any], message: str, net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    with pytest.warns(RuntimeWarning, match=message), ingest.record(net, tmp_path, **options):
        nets.train(net, 2)


def test_a_fork_of_the_training_records_nothing(net: Any, nets: ModuleType, tmp_path: Path) -> None:
    """It has no thread that writes: it would wait for room in the queue for ever."""
    with ingest.record(net, tmp_path, what="tensors", queue_nbytes=1) as recorder:
        nets.train(net, 1)
        child = os.fork()
        if not child:
            signal.alarm(60)
            nets.train(net, 2)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        nets.train(net, 1)
    assert recorder.recorded == [0, 1]
    assert recordings.steps(recorder.directory) == [0, 1]


def test_a_disk_that_fails_does_not_end_the_training(net: Any, nets: ModuleType, tmp_path: Path) -> None:
    def remove(step: int) -> None:
        if step == 0:
            shutil.rmtree(tmp_path / "recorded")
            (tmp_path / "recorded").touch()

    with (
        pytest.warns(RuntimeWarning, match="writing failed, and the rest was left out"),
        ingest.record(net, tmp_path, of="outputs") as recorder,
    ):
        nets.train(net, 3, before=remove)
    assert recorder.step == 2


def test_a_tensor_that_cannot_be_read_does_not_end_the_training(
    net: Any, nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    with (  # noqa: PT031  (the warning comes at the end of the recording)
        pytest.warns(RuntimeWarning, match=r"Module.Linear first.fc output: RuntimeError: out of memory"),
        ingest.record(net, tmp_path, of="outputs", modules="first.fc") as recorder,
    ):
        monkeypatch.setattr(recorder._camera, "take", fail)
        nets.train(net, 2)
    assert recorder._writer.queue.held_nbytes == 0


def test_what_is_computed_within_a_gradient_transform_is_recorded(torch: Any, tmp_path: Path) -> None:
    """A tensor that `torch.func.grad` has wrapped; one sample of `vmap` cannot be told from the batch."""
    torch.manual_seed(0)
    net, x = torch.nn.Linear(4, 3), torch.randn(6, 4)
    wanted = net(x).detach().numpy()

    def loss(parameters: Any, read: Any) -> Any:
        return torch.func.functional_call(net, parameters, (read,)).square().mean()

    with ingest.record(net, tmp_path / "dump", what="tensors"):
        torch.func.grad(loss)(dict(net.named_parameters()), x)
    run = ingest_and_open(tmp_path / "dump", tmp_path / "run.zarr")
    assert {tensor.name for tensor in run.tensors(io="output")} >= {"Parameter.weight.output.0"}
    (output,) = run.tensors(name="Module.Linear.model.output.0")
    np.testing.assert_array_equal(output.read(), wanted)
    with (
        pytest.warns(RuntimeWarning, match=r"what is computed within torch.func.vmap cannot be recorded"),
        ingest.record(net, tmp_path / "samples"),
    ):
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(net.named_parameters()), x)


# With `overhead`, as many modules are looked at in a step as that pays for, in turn; the store says so.


@pytest.fixture
def budget_net(torch: Any, nets: ModuleType) -> Any:
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
    budget_net: Any, nets: ModuleType, tmp_path: Path
) -> None:
    """A NaN in such a module: nothing says that the step is clean."""

    def plant(step: int) -> None:
        budget_net.second.rescale.broken = step == 5

    with ingest.record(budget_net, tmp_path / "dump", overhead=1e-9) as recorder:
        nets.train(budget_net, 8, before=plant)
    assert recordings.mark(recorder.directory, 0).get("not_looked_at", 0) == 0
    told = recordings.mark(recorder.directory, 5)
    assert told["not_looked_at"] == 7
    store = ingest_and_open(tmp_path / "dump", tmp_path / "run.zarr")
    first, fifth = (
        [tensor.name for tensor in store.tensors("Module.*.output.0", step=step)] for step in (0, 5)
    )
    assert fifth == first
    assert all(math.isnan(tensor.statistics.nan_count) for tensor in store.tensors(step=5))
    answer = ingest.origin(store)
    assert any("it is not known whether they hold NaN or Inf" in note for note in answer.notes)


def test_with_room_for_all_of_it_all_is_looked_at(budget_net: Any, nets: ModuleType, tmp_path: Path) -> None:
    with ingest.record(budget_net, tmp_path, overhead=0.9) as recorder:
        nets.train(budget_net, 6, before=lambda _: time.sleep(0.2))
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
    options: dict[str, Any], message: str, budget_net: Any, tmp_path: Path
) -> None:
    with pytest.raises(ingest.UsageError, match=message):
        ingest.record(budget_net, tmp_path, **options)


# Functions that compute something are recorded; questions, new memory and optimizers are not.


def recorded(make: Any, nets: ModuleType, torch: Any, directory: Path) -> list[str]:
    net = nets.Returns(make)
    with ingest.record(net, directory, of="functions") as recorder:
        net(torch.arange(4.0))
    lines = recordings.lines(recorder.directory, 0)
    return [f"{line['op_type']}.{line['op_name']}.{line['io']}.{line['slot']}" for line in lines]


def test_a_function_has_its_inputs_as_they_were_and_its_output(
    nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    def make(x: Any) -> Any:
        y = torch.empty_like(x)
        y[:] = x * 2
        y.add_(x).add_(1)
        return torch.nn.functional.softmax(y, dim=-1) + torch.zeros(4).sum()

    assert recorded(make, nets, torch, tmp_path) == [
        "Tensor.mul.model.mul.0.input.0",
        "Tensor.mul.model.mul.0.output.0",
        "Tensor.setitem.model.setitem.0.input.0",
        "Tensor.setitem.model.setitem.0.input.2",
        "Tensor.setitem.model.setitem.0.output.0",
        *(f"Tensor.add_.model.add_.{n}.{io}" for n, io in ((0, "input.0"), (0, "input.1"), (0, "output.0"))),
        *(f"Tensor.add_.model.add_.1.{io}" for io in ("input.0", "output.0")),
        "Functional.softmax.model.softmax.0.input.0",
        "Functional.softmax.model.softmax.0.output.0",
        "Tensor.sum.model.sum.0.input.0",
        "Tensor.sum.model.sum.0.output.0",
        *(f"Tensor.add.model.add.0.{io}" for io in ("input.0", "input.1", "output.0")),
    ]


def test_the_destination_of_a_collective_is_what_it_writes(
    nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    """Nobody has written it before; and what nobody has waited for is told from it."""
    distributed = torch.distributed

    def make(x: Any) -> Any:
        parts = [torch.full((4,), torch.nan)]
        distributed.all_gather(parts, x)
        distributed.all_gather(tensor_list=parts, tensor=x, async_op=True).wait()
        return parts[0]

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert recorded(make, nets, torch, tmp_path / "dump") == [
            "Torch.all_gather.model.all_gather.0.input.0",
            "Torch.all_gather.model.all_gather.0.output.0",
            "Torch.all_gather.model.all_gather.1.input.0",
            "Torch.all_gather.model.all_gather.1.output.elem.0",
        ]
    finally:
        distributed.destroy_process_group()


# What `ingest.record` refuses, and where it writes.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "all"}, "what='all' is not known"),
        ({"of": "losses"}, "of='losses' is not known"),
        ({"of": ["inputs", "losses"]}, "of='losses' is not known"),
        ({"advance": "epoch"}, "advance='epoch' is not known"),
        ({"when_full": "drop"}, "when_full='drop' is not known"),
        ({"compiled": "yes"}, "compiled='yes' is not known"),
        ({"every": 0}, "every=0 is less than 1"),
        ({"every": "2"}, "every='2' is not a whole number"),
        ({"every": 1.5}, "every=1.5 is not a whole number"),
        ({"steps": 3}, "steps=3 is not a list of steps"),
        ({"steps": "1"}, "steps='1' is not a list of steps"),
        ({"steps": [0.5]}, "steps: 'float' object cannot be interpreted as an integer"),
        ({"of": ()}, "of is empty"),
        ({"modules": ["0"]}, r"modules=\['0'\] is not a pattern"),
        ({"queue_nbytes": 0}, "queue_nbytes=0 is less than 1"),
        ({"first_step": -1}, "first_step=-1 is less than 0"),
        ({"mesh": {"tp": 1}}, "mesh: tp=1 is not a place and a size"),
        ({"mesh": {"tp": (2, 2)}}, r"mesh: tp=\(2, 2\) is not a place and a size"),
        ({"mesh": {"data": (0, 2)}}, "mesh: no axis 'data'"),
        ({"mesh": 3}, "mesh: has no names of axes"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(
    options: dict[str, Any], message: str, nets: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(ingest.UsageError, match=message) as error:
        ingest.record(nets.Net(), tmp_path, **options)
    assert error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_without_pytorch_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ingest.UsageError, match="needs PyTorch, which is not installed") as error:
        ingest.record(object(), tmp_path)
    assert error.value.hint == "pip install 'dump-ingest[torch]'"


def test_the_directory_tells_rank_and_places(
    nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "5")
    mesh = {"tp": (1, 2), "pp": (0, 1), "dp": (2, 4)}
    recorder = ingest.record(nets.Net(), tmp_path, mesh=mesh)
    assert recorder.directory == tmp_path / "recorded/rank_5.tp_rank_1_of_2.dp_rank_2_of_4"


def test_no_directory_is_refused(nets: ModuleType) -> None:
    with pytest.raises(ingest.UsageError, match="None is not a directory"):
        ingest.record(nets.Net(), None)  # type: ignore[arg-type]
