"""Files that are generated: current, and all made by `make generated`."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("deploy", "docs", "helm", "ingest", "workers")


def recipe() -> list[str]:
    """Return the Python commands of `make generated`; the .proto file has another test."""
    (lines,) = re.findall(r"^generated:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return re.findall(r"^\t@\$\(BIN\)/python (.*)$", lines, re.MULTILINE)


def files(root: Path) -> dict[str, bytes]:
    """Return the files below the folders that generators read and write."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_generated_files_are_current(tmp_path: Path) -> None:
    """In a copy, `make generated` changes nothing."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = files(tmp_path)
    for command in recipe():
        subprocess.run([sys.executable, *command.split()], cwd=tmp_path, check=True, capture_output=True)
    after = files(tmp_path)
    stale = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    assert stale == [], "run `make generated`"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_generator_is_run(folder: str) -> None:
    """A generator is a program that can write its result or check it."""
    commands = recipe()
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text()
        if "__main__" in text and re.search(r'"--(write|check)"', text):
            name = str(path.relative_to(ROOT))
            module = name.removesuffix(".py").replace("/", ".")
            assert any(name in command or module in command for command in commands), name
