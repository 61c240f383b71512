"""Where compiled kernels are kept, on machines that let nothing be written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import workers

pytestmark = pytest.mark.timeout(60)

#: Computes something small, and says what the kernel was loaded from.
_USE = """
import numpy as np
from workers import kernels
state = kernels.new_state()
kernels.accumulate_codes(np.ones(3, np.uint8), np.arange(256.0), state)
assert state[kernels.COUNT] == 3
print(kernels._accumulate_codes.stats.cache_path, sum(kernels._accumulate_codes.stats.cache_hits.values()))
"""


@pytest.fixture
def use(tmp_path: Path, unprivileged: tuple[str, ...]) -> Callable[[Path], list[str]]:
    """Use a kernel in a read-only installation without a home; given is a directory for temporary files."""
    package = tmp_path / "app" / "workers"
    package.mkdir(parents=True)
    for name in ("__init__.py", "kernels.py"):
        shutil.copy(Path(workers.__file__).with_name(name), package)
    package.chmod(0o500)

    def run(temporary: Path) -> list[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))
        }
        environment |= {"HOME": "/dev/null", "PYTHONPATH": str(package.parent), "TMPDIR": str(temporary)}
        done = subprocess.run(
            [*unprivileged, sys.executable, "-c", _USE],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def test_read_only_installation_keeps_kernels_among_temporary_files(
    tmp_path: Path, use: Callable[[Path], list[str]]
) -> None:
    """Each process would else compile for six seconds."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (first, hits), (second, hits_again) = use(temporary), use(temporary)
    assert first == second
    assert Path(first).is_relative_to(temporary / f"dump-ingest-{os.geteuid()}")
    assert (hits, hits_again) == ("0", "1")
    assert (temporary / f"dump-ingest-{os.geteuid()}").stat().st_mode & 0o777 == 0o700


def test_directory_that_others_can_write_to_is_not_used(
    tmp_path: Path, use: Callable[[Path], list[str]]
) -> None:
    """What stands in a cache is executed."""
    temporary = tmp_path / "tmp"
    open_to_all = temporary / f"dump-ingest-{os.geteuid()}"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    assert use(temporary) == ["None", "0"]
    assert list(open_to_all.iterdir()) == []
