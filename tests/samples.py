"""Samples that are not part of the repository: trees of dump systems, some of them copied from elsewhere.

They are looked for in the directory that `DUMP_SAMPLES` names, else in `shared/samples` beside the checkout.
Tests that need one skip where it is absent.
"""

import os
from pathlib import Path

import pytest

SAMPLES = Path(os.environ.get("DUMP_SAMPLES") or Path(__file__).parents[2] / "shared" / "samples")


def sample(path: str) -> Path:
    """Return the place of a sample; skip the test where there is none."""
    found = SAMPLES / path
    if not found.exists():
        pytest.skip(f"no sample {path}")
    return found
