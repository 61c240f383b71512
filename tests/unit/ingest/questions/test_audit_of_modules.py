"""Modules of any name are held against what their weights and parts suggest."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ingest
from ingest.findings.series import SeriesRules
from ingest.questions.audit import AuditAnswer
from ingest.reader.catalog import open_catalog
from tests.rule_sets import only
from tests.stores import ingest_directly

#: Called with a model before each step of each rank; what it returns is called after the step.
Disturb = Callable[[Any, int, int], Callable[[], None] | None]
Audited = Callable[..., AuditAnswer]


@pytest.fixture
def audited(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Audited:
    """Return a function that trains a model with a residual block on some ranks, and audits the run."""
    nn = torch.nn

    class Column(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16) * 0.1)

        def forward(self, x: Any) -> Any:
            return x @ self.weight.T

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(16), Column(), Column()

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.relu(self.up(self.norm(x))))

    def run(disturb: Disturb = lambda *_: None, *, ranks: int = 1, steps: int = 4) -> AuditAnswer:
        for rank in range(ranks):
            monkeypatch.setenv("RANK", str(rank))
            torch.manual_seed(0)
            net = nn.Sequential(Block(), nn.Linear(16, 4))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            with ingest.record(net, tmp_path / "dump", what="tensors"):
                for step in range(steps):
                    after = disturb(net, rank, step)
                    optimizer.zero_grad()
                    net(torch.randn(8, 16)).square().mean().backward()
                    optimizer.step()
                    if after is not None:
                        after()
        ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
        return ingest.audit(ingest.open_store(tmp_path / "run.zarr"))

    return run


def test_modules_of_other_names_and_sums_of_their_parts_are_proved(audited: Audited) -> None:
    answer = audited(ranks=2)
    assert answer.failures == ()
    proved = {share.kind: share.tensors for share in answer.coverage if share.is_proved}
    assert proved["sum of its parts"] == 2 * 4
    assert proved["linear"] == 2 * 4 * 3
    assert proved["layernorm"] == 2 * 4


@pytest.mark.parametrize(("elements", "first"), [(1, 0), (1, 2), (16, 2)])
def test_an_element_that_is_not_the_sum_of_its_parts_is_named_with_its_rank(
    audited: Audited, elements: int, first: int
) -> None:
    """Rows may be set to zero because they are padding, or were dumped while a reduction was under way."""

    def disturb(net: Any, rank: int, step: int) -> Callable[[], None] | None:
        def hook(_: Any, __: Any, output: Any) -> Any:
            output = output.clone()
            output.view(-1)[32 : 32 + elements] *= 1.5
            return output

        wrong = rank == 1 and step == first
        return net[0].register_forward_hook(hook, prepend=True).remove if wrong else None

    failures = audited(disturb, ranks=2).failures
    expected = [("Module.Block.0.output.0", 1, (first,))] if elements == 1 else []
    assert [(each.name, each.rank, each.steps) for each in failures] == expected


def test_a_replica_that_computes_with_the_last_parameters_is_named(audited: Audited) -> None:
    last: dict[int, Any] = {}

    def disturb(net: Any, rank: int, step: int) -> Callable[[], None] | None:
        weight = net[0].up.weight
        old, last[rank] = last.get(rank), weight.detach().clone()
        if rank == 0 or step != 2:
            return None
        now, all_of_it = last[rank], slice(None)
        up = net[0].up
        before = up.register_forward_pre_hook(lambda *_: weight.data.__setitem__(all_of_it, old))
        after = up.register_forward_hook(lambda *_: weight.data.__setitem__(all_of_it, now))

        def restore() -> None:
            before.remove()
            after.remove()

        return restore

    failure = audited(disturb, ranks=2).failures[0]
    assert (failure.cause, failure.level, failure.rank, failure.steps) == ("stale value", "shown", 1, (2,))
    assert failure.name == "Module.Column.0.up.output.0"


def test_parameters_that_move_between_two_calls_of_a_step_are_held_against_the_first(
    torch: Any, tmp_path: Path
) -> None:
    """As in SAM, whose second pass has other weights; what fails alone in it is wrong."""
    failures = {}
    for name, moved in (("all", (0, 2)), ("one", (2,))):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with ingest.record(net, tmp_path / name, what="tensors", advance="optimizer"):
            for _ in range(3):
                for by in (0.5, -0.5):
                    net(torch.randn(8, 16)).square().mean().backward()
                    for layer in moved:
                        net[layer].weight.data[3, 0] += by
                optimizer.step()
                optimizer.zero_grad()
        ingest_directly(tmp_path / name, tmp_path / f"{name}.zarr")
        failures[name] = ingest.audit(ingest.open_store(tmp_path / f"{name}.zarr")).failures
    assert not failures["all"]
    assert {failure.name for failure in failures["one"]} == {"Module.Linear.2.output.0#1"}


@pytest.mark.parametrize("path", ["0", "0.norm", "1"])
def test_of_replicas_that_part_the_one_that_does_not_follow_from_its_operands_is_named(
    audited: Audited, tmp_path: Path, path: str
) -> None:
    """A block is the sum of its parts; a norm and a linear layer are what their names say."""

    def disturb(net: Any, rank: int, step: int) -> Callable[[], None] | None:
        def hook(_: Any, __: Any, output: Any) -> Any:
            output = output.clone()
            output[3] *= 1.5
            return output

        wrong = rank == 1 and step == 2
        return net.get_submodule(path).register_forward_hook(hook, prepend=True).remove if wrong else None

    audited(disturb, ranks=2)
    first, *_ = ingest.layout(ingest.open_store(tmp_path / "run.zarr")).findings
    assert (first.kind, first.ranks, first.step) == ("one row", (1,), 2)
    assert f".{path}.output" in first.name
    if path != "1":  # of a linear layer, it is shown without the other rank
        assert first.text.endswith("on rank 1, it is not what its operands give, and on rank 0 it is")


def transformer(torch: Any) -> Any:
    """Return a block of each kind of operator whose backward pass is known, between a table and a loss."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.LayerNorm(32), nn.RMSNorm(32)
            self.qkv, self.up, self.down = nn.Linear(32, 96), nn.Linear(32, 64, bias=False), nn.Linear(64, 32)
            self.gelu, self.gate, self.drop = nn.GELU(), nn.SiLU(), nn.Dropout(0.25)

        def forward(self, x: Any) -> Any:
            q, k, v = (
                each.view(4, 8, 2, 16).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, dim=-1)
            )
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + y.transpose(1, 2).reshape(4, 8, 32)
            weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1)
            x = x - torch.matmul(weights, v).transpose(1, 2).reshape(4, 8, 32) / 4
            up = self.up(x)
            return self.last(x + self.drop(self.down(self.gelu(up) * self.gate(up) + torch.tanh(up))))

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.head = nn.Embedding(50, 32), nn.Embedding(8, 32), nn.Linear(32, 50)
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, words: Any) -> Any:
            x = self.words(words) + self.places(torch.arange(8))
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Model()


@pytest.mark.parametrize("is_narrow", [False, True])
def test_gradients_of_activations_follow_from_what_readers_pass_back(
    torch: Any, tmp_path: Path, *, is_narrow: bool
) -> None:
    wrong = None if is_narrow else "blocks.1.down"
    torch.manual_seed(0)
    net = transformer(torch)
    of = ("inputs", "outputs", "gradients", "parameters", "functions")
    for path, module in net.named_modules():
        if path == wrong:

            def turned(gradient: Any) -> Any:
                gradient = gradient.clone()
                gradient[2, 3, 5] += 0.5
                return gradient

            module.register_forward_hook(lambda *given: given[2].register_hook(turned) and None)
    with ingest.record(net, tmp_path / "dump", what="tensors", of=of):
        for _ in range(2):
            net.zero_grad()
            words = torch.randint(50, (4, 9))
            with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
                logits = net(words[:, :-1]).reshape(-1, 50)
                loss = torch.nn.functional.cross_entropy(logits, words[:, 1:].reshape(-1))
            (loss / 2).backward()
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    answer = ingest.audit(ingest.open_store(tmp_path / "run.zarr"))
    of_activations = [each for each in answer.coverage if each.kind == "gradient of an activation"]
    if wrong is None:
        assert not answer.failures
        assert sum(each.tensors for each in of_activations) <= 2 * 12
    else:
        assert not of_activations
        assert {(each.name, each.where) for each in answer.failures} == {
            (f"Gradient.{wrong}.output.output.0", "element")
        }


@pytest.mark.parametrize(
    ("include", "where", "found"), [("*", "", 1), ("*Norm*", "", 0), ("*", "count < 8", 0)]
)
def test_the_rule_that_recomputes_a_sample_names_what_does_not_follow_on_the_rank_whose_turn_it_is(
    audited: Audited, tmp_path: Path, include: str, where: str, found: int
) -> None:
    def disturb(net: Any, rank: int, step: int) -> Callable[[], None] | None:
        def hook(_: Any, __: Any, output: Any) -> Any:
            output = output.clone()
            output[2, 3] += 1
            return output

        wrong = rank == 1 and step in (1, 2)
        return net[1].register_forward_hook(hook, prepend=True).remove if wrong else None

    audited(disturb, ranks=2)
    series = SeriesRules(only(kind="audit", share=1, include=include, where=where))
    catalog = open_catalog(str(tmp_path / "run.zarr"))
    findings = [each for step in range(4) for each in series.evaluate(catalog, step, {}, "a").result.findings]
    assert [(each.name, each.rank, each.step) for each in findings] == [
        ("Module.Linear.1.output.0", 1, 1)
    ] * found
    for each in findings:
        assert each.reason.startswith("does not follow from its inputs by linear: 1 of 32 elements, element")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("wrong", "name", "cause"),
    [
        ("", "", ""),
        ("sequence", "Module.Sequential.body.output.0", "operator computes something else"),
        ("recomputed", "Module.Sequential.body.input.0", "operator computes something else"),
        ("rate", "Parameter.body.0.weight.output.0", "factor"),
        ("clipped", "Parameter.body.0.weight.output.0", "gradients clipped to nothing"),
        ("added", "Gradient.head.2.weight.output.0", "gradients add up over steps"),
        ("row", "Parameter.body.2.weight.output.0", "one row"),
    ],
)
def test_what_one_run_shows_of_a_mistake_that_begins_in_the_fourth_step(
    torch: Any, tmp_path: Path, wrong: str, name: str, cause: str
) -> None:
    """Of one rank, SGD with momentum, and a sequence of modules that the backward pass computes again."""
    nn, first = torch.nn, 3

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
            self.head = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))

        def forward(self, x: Any) -> Any:
            return self.head(torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False))

    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    step = 0

    def returned(_: Any, __: Any, output: Any) -> Any:
        return output * 0.5 if wrong == "sequence" and step >= first else None

    def read(_: Any, inputs: Any) -> Any:
        is_again = torch._C._current_graph_task_id() != -1
        return (inputs[0].flip(0),) if wrong == "recomputed" and step >= first and is_again else None

    net.body.register_forward_hook(returned, prepend=True)
    net.body.register_forward_pre_hook(read, prepend=True)
    with ingest.record(net, tmp_path / "dump", what="tensors"):
        for step in range(7):
            if wrong != "added" or step < first:
                optimizer.zero_grad()
            net(torch.randn(32, 16)).square().mean().backward()
            if wrong in ("clipped", "added") and step >= first - (wrong == "added"):
                nn.utils.clip_grad_norm_(net.parameters(), 1e-12 if wrong == "clipped" else 1e-2)
            optimizer.param_groups[0]["lr"] = 1.0 if (wrong, step) == ("rate", first) else 0.01
            weight = net.body[2].weight
            old = weight.detach().clone()
            optimizer.step()
            if (wrong, step) == ("row", first):
                weight.data[1] = old[0]
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    failures = ingest.audit(ingest.open_store(tmp_path / "run.zarr")).failures
    assert [(each.name, each.cause, each.steps[0]) for each in failures[:1]] == (
        [(name, cause, first)] if wrong else []
    )


@pytest.mark.parametrize("module", [0, 2, 4], ids=["weight norm", "spectral norm", "pruned"])
def test_weights_that_are_made_of_others_are_those_that_a_layer_computes_with(
    torch: Any, tmp_path: Path, module: int
) -> None:
    nn, utils, prune = torch.nn, torch.nn.utils, import_module("torch.nn.utils.prune")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
    utils.parametrizations.weight_norm(net[0])
    utils.parametrizations.spectral_norm(net[2])
    prune.l1_unstructured(net[4], "weight", 0.5)

    def spoilt(_: Any, __: Any, output: Any) -> Any:
        output = output.clone()
        output.view(-1)[5] += 1
        return output

    with ingest.record(net, tmp_path / "dump", what="tensors"):
        for is_spoilt in (False, True, False):
            hook = net[module].register_forward_hook(spoilt, prepend=True) if is_spoilt else None
            net(torch.randn(8, 8)).square().mean().backward()
            net.zero_grad()
            if hook is not None:
                hook.remove()
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    (failure,) = ingest.audit(ingest.open_store(tmp_path / "run.zarr")).failures
    assert (failure.name, failure.steps) == (f"Module.Linear.{module}.output.0", (1,))
