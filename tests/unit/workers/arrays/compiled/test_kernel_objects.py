"""Loops as object code: loaded without numba, and never half a file."""

import ast
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from workers.arrays.compiled import kernel_entries, kernel_objects, kernels


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """The objects, made now if `make setup` has not done it."""
    kernels.warm_up()


def test_a_file_that_is_damaged_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernels.objects"
    monkeypatch.setattr(kernel_objects, "_paths", lambda: iter([path]))
    assert not kernel_objects.are_kept()
    path.write_bytes(b"\x82\xa7objects")
    assert kernel_objects._read() is None


def test_the_sources_are_all_that_the_entries_import() -> None:
    """Else, an older object would be used after a change of its code, or of the options of the compiler."""
    sources, found = {"kernel_objects.py"}, {"kernel_entries.py"}
    while found:
        sources |= found
        texts = [Path(kernel_objects.__file__).with_name(name).read_text() for name in found]
        imported = {name for text in texts for name in _imported(text)}
        found = {f"{name}.py" for name in imported} - sources
    assert set(kernel_objects._SOURCES) == sources


def _imported(text: str) -> Iterator[str]:
    """Yield the modules of the package that a source imports, also in its functions."""
    package = "workers.arrays.compiled"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            yield str(node.module).removeprefix(f"{package}.")


def test_one_of_several_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "kernels.objects", []

    def compile_slowly() -> list[Any]:
        made.append(1)
        time.sleep(0.5)
        return []

    monkeypatch.setattr(kernel_objects, "_paths", lambda: iter([path]))
    monkeypatch.setattr(kernel_entries, "compile_all", compile_slowly)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda _: kernel_objects.load(), range(3))) == [{}, {}, {}]
    assert len(made) == 1
