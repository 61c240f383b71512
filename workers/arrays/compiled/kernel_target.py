"""The processor that kernels are compiled for: that of the shipped kernels of an installation, else this one.

`workers.arrays.compiled.kernel_objects` says why an image ships kernels, and for which machines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from llvmlite import binding  # type: ignore[import-untyped]

#: Names the processor that the shipped kernels were compiled for.
TARGET: Final = Path(__file__).with_name("kernels.target")
#: By machine, the targets of shipped kernels.
TARGETS: Final = {"x86_64": "x86-64-v3", "aarch64": "generic"}
#: What the processor must have for a target, in LLVM's names.
NEEDS: Final = {
    "x86-64-v3": {"avx2", "bmi2", "f16c", "fma", "lzcnt", "movbe"},
    "generic": set(),
}


def missing_features(target: str, features: Mapping[str, bool]) -> set[str]:
    """Return the features that a processor lacks for a target; for an unknown target, the target's name."""
    return {name for name in NEEDS.get(target, {target}) if not features.get(name)}


def use_target() -> None:
    """Have kernels compiled for the target of the shipped ones, if this processor can execute it.

    The environment of this process names the target from then on: its children inherit it, and all of them
    can share one cache.
    """
    try:
        target = TARGET.read_text("ascii").strip()
    except OSError:
        return
    if "NUMBA_CPU_NAME" in os.environ or missing_features(target, binding.get_host_cpu_features()):
        return
    os.environ |= {"NUMBA_CPU_NAME": target, "NUMBA_CPU_FEATURES": ""}


def processor() -> str:
    """Return the name and the features of the processor for which kernels are compiled in this process."""
    name = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    return f"{name} {binding.get_host_cpu_features().flatten() if features is None else features}"
