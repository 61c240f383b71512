"""Compiled modules are recorded from outside, or run uncompiled."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ingest
from tests import recordings

OUTSIDE = ["model.output.0"]
INSIDE = [f"{block}.{module}.output.0" for block in ("first", "second") for module in ("fc", "rescale")]


#: Dynamo makes torch warn of what torch does.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def compile_all(torch: Any) -> Iterator[Any]:
    torch.compiler.reset()
    yield lambda module: torch.compile(module, backend="eager")
    torch.compiler.reset()


def record(net: Any, called: Any, torch: Any, tmp_path: Path, **options: Any) -> tuple[list[str], list[str]]:
    """Return the names of outputs in the second step, and the problems."""
    x = torch.ones(2, 8)
    called(x)
    with ingest.record(net, tmp_path, of="outputs", steps=[1], **options) as recorder:
        for _ in range(3):
            called(x)
    return (recordings.names(recorder.directory, 1) if recorder.recorded else []), recorder.problems


@pytest.mark.parametrize("way", ["function", "method"])
def test_a_compiled_model_is_seen_from_outside_or_runs_uncompiled(
    way: str, compile_all: Any, nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    net = nets.Net()
    if way == "function":
        net = compile_all(net)
    else:
        net.compile(backend="eager")
    names, problems = record(net, net, torch, tmp_path / "a")
    assert names == OUTSIDE
    assert problems[0].startswith("model: compiled, so nothing inside is recorded; with compiled='eager'")
    names, problems = record(net, net, torch, tmp_path / "b", compiled="eager")
    assert (names[-1:], problems) == (OUTSIDE, [])
    assert [name for name in names if name in INSIDE] == INSIDE


def test_a_compiled_part_is_seen_from_outside(
    compile_all: Any, nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    net = nets.Net()
    net.first = compile_all(net.first)
    net.second.compile(backend="eager")
    names, problems = record(net, net, torch, tmp_path)
    assert names == ["first.output.0", "second.output.0", "model.output.0"]
    assert problems[0].startswith("first, second: compiled")
    assert net.second._compiled_call_impl.__name__ != "wrapped"


def test_a_model_that_is_not_the_one_that_is_called_is_said(
    compile_all: Any, nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    net = nets.Net()
    names, problems = record(net, compile_all(net), torch, tmp_path)
    assert names == []
    assert problems[0].startswith("no call of the model was seen; record the object that you call")


@pytest.mark.parametrize("way", ["function", "method", "part"])
@pytest.mark.parametrize("steps", [range(9), []], ids=["recorded", "between"])
def test_recording_functions_neither_breaks_nor_repeats_a_compilation(
    steps: Any, way: str, nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    """In smaller graphs, the numbers may be other ones, and the training is slower."""
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    net = nets.Net()
    called = torch.compile(net, backend=backend) if way == "function" else net
    if way != "function":
        (net if way == "method" else net.first).compile(backend=backend)
    called(torch.ones(2, 8))
    assert len(graphs) == 1
    with ingest.record(called, tmp_path, of="functions", steps=steps) as recorder:
        for _ in range(2):
            called(torch.ones(2, 8))
    assert len(graphs) == 1
    assert bool(recorder.recorded) == bool(steps)
    torch.compiler.reset()
