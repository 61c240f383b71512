"""Compile all kernels next to their source, for every machine of a kind: run when an image is built."""

from __future__ import annotations

import platform

from workers.arrays import comparison_kernels, kernels
from workers.arrays.kernel_cache import TARGET, TARGETS, use_target


def ship() -> str:
    """Compile all kernels for the target of such machines; return it, "" if there is none."""
    target = TARGETS.get(platform.machine(), "")
    if target:
        TARGET.write_text(f"{target}\n", "ascii")
        use_target()
        kernels.warm_up()
        comparison_kernels.warm_up()
    return target


if __name__ == "__main__":
    print(f"kernels are compiled for {ship() or 'no target: each process compiles them on first use'}")  # noqa: T201
