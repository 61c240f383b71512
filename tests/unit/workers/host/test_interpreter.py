"""A new interpreter finds the modules of this one, after those that its user names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.host.paths import environment

ROOT = Path(__file__).parents[4]


def test_modules_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Without the installed packages.
    words = [sys.executable, "-P", "-S", "-c", "import workers.model; print(workers.model.__file__)"]
    answer = subprocess.check_output(words, env=environment(), text=True)
    assert Path(answer.strip()) == ROOT / "workers" / "model.py"


@pytest.mark.parametrize(("given", "expected"), [("", [ROOT]), ("/modules", [Path("/modules"), ROOT])])
def test_what_the_user_names_comes_first(
    given: str, expected: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", given)
    assert list(map(Path, environment()["PYTHONPATH"].split(os.pathsep))) == expected
