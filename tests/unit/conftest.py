"""Fixtures for tests without servers and clusters."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.npy_files import MadeDump

settings.register_profile("unit", deadline=None, max_examples=40)
settings.load_profile("unit")


@pytest.fixture
def made(tmp_path: Path) -> MadeDump:
    """An empty dump."""
    dump = MadeDump(tmp_path / "dump")
    dump.root.mkdir()
    return dump


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "run.zarr"
