"""The fixture `golden`, as tests in another repository use it."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

pytest.importorskip("torch")
pytest_plugins = ["pytester"]
Run: TypeAlias = Callable[..., pytest.RunResult]
_BLOCK = """
import torch
from torch import nn

def block(approximate, width=128):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.GELU(approximate), nn.LayerNorm(width), nn.Linear(width, 8))

def test_block(golden):
    golden.check(block({kind!r}), torch.randn(16, 64), name="small")
    golden.check(block({kind!r}), torch.randn(4, 64), loss=lambda output: output.square().mean(), name="few")
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Return what writes the test of a block and runs it as a user does."""

    def run(kind: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_block=_BLOCK.format(kind=kind))
        return pytester.runpytest(*options)

    return run


def test_the_first_difference_is_named_and_can_be_accepted(run: Run, pytester: pytest.Pytester) -> None:
    missing = run("none")
    missing.stdout.fnmatch_lines(["*no golden recording*test_block-small*--golden-update*"])
    assert run("none", "--golden-update").ret == 0
    kept = pytester.path / "golden" / "test_block"
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    assert sum(map(len, before.values())) < 400_000
    assert run("none").ret == 0
    assert run("none", "--golden-update").ret == 0
    assert before == {path: path.read_bytes() for path in before}  # nothing to accept

    changed = run("tanh")
    changed.stdout.fnmatch_lines(
        ["*Module.GELU.1.output.0 differs first*its inputs are equal*", "*13 different*"]
    )
    (report,) = (pytester.path / "golden-reports").iterdir()
    assert "Module.GELU.1.output.0" in report.read_text()

    accepted = run("tanh", "--golden-update")
    accepted.stdout.fnmatch_lines(["*test_block-small: Module.GELU.1.output.0 differs first*"])
    assert run("tanh").ret == 0


def test_large_tensors_are_kept_as_statistics(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngolden_max_nbytes = 100\n")
    assert run("none", "--golden-update").ret == 0
    kept = pytester.path / "golden" / "test_block"
    assert sum(path.stat().st_size for path in kept.rglob("*.safetensors")) < 10_000
    assert run("none").ret == 0
    changed = run("tanh")
    assert changed.ret == 1
    changed.stdout.fnmatch_lines(["*GELU.1.output.0 differs first*"])


@pytest.mark.campaign
def test_workers_of_xdist_say_what_was_accepted(run: Run) -> None:
    accepted = run("none", "--golden-update", "-n2")
    accepted.stdout.fnmatch_lines(["*test_block-small: new*", "*test_block-few: new*"])


def test_what_is_no_model_is_refused_by_the_recorder(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(golden):\n    golden.check(3)\n")
    result = pytester.runpytest()
    result.stdout.fnmatch_lines(["*int is not a torch.nn.Module*"])
