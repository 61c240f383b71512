"""Kernels that an image ships are compiled for its target, and for nothing if the machine has none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import workers

pytestmark = pytest.mark.timeout(60)

#: Ships without compiling, and says for which processor object code would be looked for, and where first.
_SHIP = """
from workers.arrays.compiled import kernel_objects, kernel_target, kernels, ship_kernels
ship_kernels.TARGETS = {TARGETS}
kernels.warm_up = kernel_target.use_target
target = ship_kernels.ship()
print(target or "none", kernel_target.processor().strip(), next(kernel_objects._paths()).parent)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the kernels, so that nothing is shipped beside the real ones."""
    package = tmp_path / "app" / "workers"
    source = Path(workers.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "dump", "store", "tasks", "rules")
    shutil.copytree(source, package, ignore=ignored)
    return package


def ship(package: Path, targets: dict[str, str]) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", _SHIP.replace("{TARGETS}", repr(targets))],
        capture_output=True,
        text=True,
        check=True,
        env=inherited | {"PYTHONPATH": str(package.parent)},
        cwd="/",
    )
    return done.stdout.strip()


def test_kernels_are_compiled_for_the_target_and_kept_beside_their_source(package: Path) -> None:
    """The target counts although the kernels were imported before it was recorded."""
    compiled = package / "arrays" / "compiled"
    assert ship(package, {os.uname().machine: "generic"}) == f"generic generic {compiled / '__pycache__'}"
    assert (compiled / "kernels.target").read_text() == "generic\n"
