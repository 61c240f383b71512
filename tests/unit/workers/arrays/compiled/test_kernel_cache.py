"""Where compiled kernels are kept, on machines that let nothing be written."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import workers

pytestmark = pytest.mark.timeout(60)

#: Computes something small, and says what the kernel was loaded from.
_USE = """
import numpy as np
from workers.arrays.compiled import kernel_loops, kernels
state = kernels.new_state()
kernels.accumulate_codes(np.ones(3, np.uint8), np.arange(256.0), state)
assert state[kernel_loops.COUNT] == 3
stats = kernel_loops.accumulate_codes.stats
print(stats.cache_path, sum(stats.cache_hits.values()))
"""


@dataclass(frozen=True)
class Installation:
    """The kernels in a package of their own, used without a home."""

    package: Path
    unprivileged: tuple[str, ...]

    def lock(self) -> None:
        """Let nothing be written to it any more."""
        for path in (*self.package.rglob("*/"), self.package):
            path.chmod(0o500)

    def use(self, temporary: Path, **environment: str) -> list[str]:
        """Use a kernel; return where it is cached, and "1" if it came from there."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))
        }
        own = {"HOME": "/dev/null", "PYTHONPATH": str(self.package.parents[2]), "TMPDIR": str(temporary)}
        done = subprocess.run(
            [*self.unprivileged, sys.executable, "-c", _USE],
            check=False,
            capture_output=True,
            text=True,
            env=inherited | own | environment,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


@pytest.fixture
def installation(tmp_path: Path, unprivileged: tuple[str, ...]) -> Installation:
    source, copy = Path(workers.__file__).parent, tmp_path / "app" / "workers"
    package = copy / "arrays" / "compiled"
    package.mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "arrays/__init__.py"):
        shutil.copy(source / name, copy / name)
    for path in source.glob("arrays/compiled/*.py"):
        shutil.copy(path, package)
    shutil.copytree(source / "host", copy / "host", ignore=shutil.ignore_patterns("__pycache__"))
    return Installation(package, unprivileged)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    directory = tmp_path / "tmp"
    directory.mkdir()
    return directory


def test_read_only_installation_keeps_kernels_among_temporary_files(
    temporary: Path, installation: Installation
) -> None:
    """Each process would else compile for six seconds."""
    installation.lock()
    (first, hits), (second, hits_again) = installation.use(temporary), installation.use(temporary)
    assert first == second
    assert Path(first).is_relative_to(temporary / f"dump-ingest-{os.geteuid()}")
    assert (hits, hits_again) == ("0", "1")
    assert (temporary / f"dump-ingest-{os.geteuid()}").stat().st_mode & 0o777 == 0o700


def test_directory_that_others_can_write_to_is_not_used(temporary: Path, installation: Installation) -> None:
    """What stands in a cache is executed."""
    installation.lock()
    open_to_all = temporary / f"dump-ingest-{os.geteuid()}"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    assert installation.use(temporary) == ["None", "0"]
    assert list(open_to_all.iterdir()) == []


def test_shipped_kernels_are_loaded_from_a_read_only_installation(
    tmp_path: Path, temporary: Path, installation: Installation
) -> None:
    """So an image needs no place to write to, and does not compile at each start."""
    (installation.package / "kernels.target").write_text("generic\n")
    cache = str(installation.package / "__pycache__")
    assert installation.use(temporary) == [cache, "0"]  # this ships one kernel
    installation.lock()
    assert installation.use(tmp_path / "nowhere") == [cache, "1"]
    # Whoever asks for another processor gets code for it.
    assert installation.use(temporary, NUMBA_CPU_NAME="nehalem", NUMBA_CPU_FEATURES="") == [cache, "0"]
    assert list(temporary.rglob("*.nbc"))
