"""Samples that are not part of the repository: trees of dump systems, some of them copied from elsewhere.

They are in the directory that `DUMP_SAMPLES` names, or else in `shared/samples` next to the checkout. Tests
that need a missing sample are skipped.
"""

import os
from pathlib import Path

import pytest

SAMPLES = Path(os.environ.get("DUMP_SAMPLES") or Path(__file__).parents[2] / "shared" / "samples")


def sample(path: str) -> Path:
    """Return the path of a sample. Skip the test if it is missing."""
    absolute = SAMPLES / path
    if not absolute.exists():
        pytest.skip(f"sample {path} is missing: set DUMP_SAMPLES to the directory of the samples")
    return absolute
