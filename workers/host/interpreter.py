"""What a new interpreter needs in order to find the modules that this one runs."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])


def environment() -> dict[str, str]:
    """Return the environment of this process, with `workers` and `ingest` on the path of modules.

    Start the interpreter with `-P`: the working directory may hold anything.
    """
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _ROOT]))
    return {**os.environ, "PYTHONPATH": path}
