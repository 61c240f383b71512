"""Functions that are compiled on first use: nothing happens before, and all of a module at once then."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from workers.arrays.compiled.lazy_compile import compiled

ROOT = Path(__file__).parents[5]


@compiled(set())
def _doubled(x: float) -> float:
    return 2 * x


@compiled({"reassoc"})
def _sum_of_doubles(values: np.ndarray) -> float:
    total = 0.0
    for value in values:
        total += _doubled(value)
    return total


def test_functions_of_one_module_call_one_another() -> None:
    """Whichever is called first, from however many threads, and by a reference that was taken before."""
    before = _sum_of_doubles
    results: list[float] = []
    threads = [
        threading.Thread(target=lambda: results.append(before(np.array([1.0, 2.5])))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [7.0] * 4
    assert _doubled(4.0) == 8.0
    assert hasattr(_doubled, "stats")
    assert hasattr(_sum_of_doubles, "stats")


@pytest.mark.parametrize(
    "module",
    ["ingest.reader.catalog", "ingest.layouts.detect", "workers.arrays.comparison", "workers.plugin"],
)
def test_importing_what_uses_kernels_does_not_import_the_compiler(module: str) -> None:
    """It takes half a second, which who only opens a store or finds a dump should not wait for."""
    code = (
        "import os, sys\n"
        "environment = dict(os.environ)\n"
        f"import {module}\n"
        "print('numba' in sys.modules, dict(os.environ) == environment)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
