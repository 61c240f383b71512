"""Compile all kernels next to their source, for every machine of a kind. Run when an image is built.

python -m workers.arrays.compiled.ship_kernels
"""

from __future__ import annotations

import platform

from workers.arrays.compiled import kernels
from workers.arrays.compiled.kernel_target import TARGET, TARGETS


def ship() -> str:
    """Compile all kernels for the target of machines like this one; return it, "" if there is none.

    This must come before any other use of a kernel in the process, because the first use decides the target.
    """
    target = TARGETS.get(platform.machine(), "")
    if target:
        TARGET.write_text(f"{target}\n", "ascii")
        kernels.warm_up()
    return target


if __name__ == "__main__":
    print(f"kernels are compiled for {ship() or 'no target: each process compiles them on first use'}")  # noqa: T201
