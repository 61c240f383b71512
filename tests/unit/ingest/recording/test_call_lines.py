"""Lines are those of the program, not of PyTorch or of the recorder."""

import json
from pathlib import Path
from typing import Any

import pytest

from ingest.recording.hooks import CallLines

pytestmark = pytest.mark.usefixtures("torch")


def caller(lines: CallLines, name: str, module: Any = None) -> None:
    lines.note(name, module)


def test_the_innermost_line_comes_first_and_only_the_first_call_counts(torch: Any, nets: Any) -> None:
    lines = CallLines(torch)
    caller(lines, "a")
    lines.note("a")
    caller(lines, "net", nets.Net())
    caller(lines, "linear", torch.nn.Linear(1, 1))
    stacks = json.loads(lines.to_json())
    assert list(stacks) == ["a", "net", "linear"]
    assert stacks["a"][0].startswith(f"File {Path(__file__)}, line ")
    assert stacks["a"][0].endswith("in caller, \n lines.note(name, module)")
    assert stacks["a"][1].endswith('\n caller(lines, "a")')
    assert stacks["net"][0].endswith("in forward, \n def forward(self, x: Any) -> Any:")
    # The code of PyTorch's own module is not the user's.
    assert stacks["linear"][0].endswith("in caller, \n lines.note(name, module)")
    assert not any("/torch/" in line for stack in stacks.values() for line in stack)
