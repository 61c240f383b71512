"""PyTorch is imported when something is recorded, and by one function."""

import ast
from pathlib import Path
from typing import Any

import ingest.recording
from ingest.recording.torch_module import import_torch


def test_nothing_of_the_recorder_imports_pytorch_when_it_is_imported() -> None:
    modules = sorted(Path(ingest.recording.__file__).parent.glob("*.py"))
    assert len(modules) > 5
    for path in modules:
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.partition(".")[0] == "torch"], path


def test_it_is_the_module_of_the_process(torch: Any) -> None:
    assert import_torch() is torch
