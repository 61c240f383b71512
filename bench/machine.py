"""The machine and the software versions that figures depend on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: Packages that figures depend on.
_PACKAGES = (
    "dask",
    "distributed",
    "fsspec",
    "google-crc32c",
    "llvmlite",
    "ml-dtypes",
    "numba",
    "numcodecs",
    "numpy",
    "obstore",
    "s3fs",
    "tensorstore",
    "xxhash",
    "zarr",
    "zarrs",
)
_GIB = 1024**3


def describe(disk: Path, memory: Path | None) -> dict[str, Any]:
    """Return what figures depend on: processor, memory, file systems, versions, and the current load."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "disk": file_system(disk),
        "tmpfs": file_system(memory) if memory else None,
        "load_average": round(os.getloadavg()[0], 2),
        "commit": _commit(),
        "packages": _packages(),
    }


def in_words(machine: dict[str, Any]) -> str:
    """Return the result of `describe` as one sentence."""
    packages = machine["packages"]
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, {machine['disk']}; Python {machine['python']}, "
        f"numpy {packages.get('numpy')}, numba {packages.get('numba')}, "
        f"zarr {packages.get('zarr')}; load average {machine['load_average']} at the start"
    )


def file_system(path: Path) -> str:
    """Return the type of the file system that holds a path, such as `ext4`."""
    path = path.resolve()
    deepest: tuple[int, str] = (-1, "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        mount_point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount))
        if path.is_relative_to(mount_point):
            deepest = max(deepest, (len(mount_point.parts), kind))
    return deepest[1]


def _processor() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0].strip() if names else platform.machine()


def _packages() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _commit() -> str:
    """Return the commit of the project, with `+` if files differ from it; "" outside a checkout."""
    root = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "-C", root, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
        )
        changed = subprocess.run(
            ["git", "-C", root, "status", "--porcelain", "--untracked-files=no"],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
