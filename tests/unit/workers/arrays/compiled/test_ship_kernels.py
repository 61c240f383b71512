"""Kernels that an image ships are compiled for its target, and for nothing if the machine has none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import workers

pytestmark = pytest.mark.timeout(60)

#: Ships with a kernel that compiles quickly, and says for which processor numba compiled it.
_SHIP = """
import numpy as np
from workers.arrays.compiled import kernel_loops, kernels, ship_kernels
ship_kernels.TARGETS = {TARGETS}
kernels.warm_up = lambda: kernels.widen_half(np.zeros(1, np.float16), np.zeros(1, np.float32))
ship_kernels.comparison_kernels.warm_up = lambda: None
target = ship_kernels.ship()
codegen = kernel_loops.widen_half.targetctx.codegen() if target else None
print(target or "none", codegen.magic_tuple()[1:] if codegen else "")
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
    assert ship(package, {os.uname().machine: "generic"}) == "generic ('generic', '')"
    assert (package / "arrays" / "compiled" / "kernels.target").read_text() == "generic\n"
    assert list((package / "arrays" / "compiled" / "__pycache__").glob("kernel_loops.widen_half-*.nbc"))


def test_machine_without_a_target_ships_nothing(package: Path) -> None:
    assert ship(package, {"another": "generic"}) == "none"
    assert not (package / "arrays" / "compiled" / "kernels.target").exists()
    assert not list(package.rglob("*.nbc"))
