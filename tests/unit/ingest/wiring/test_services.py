"""A service from settings: what is refused before anything is started."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.layouts.detect import find_dump
from ingest.settings import Settings, load
from ingest.wiring.services import open_service
from tests.npy_files import MadeDump
from workers.errors import StoreFormatError


def settings(**values: Any) -> Settings:
    return load(**values).settings


def test_a_directory_that_is_not_a_store_shows_before_anything_is_started(
    made: MadeDump, store: Path
) -> None:
    made.add(np.ones(3))
    store.mkdir()
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    chosen = settings(store=str(store))
    with pytest.raises(StoreFormatError), open_service(find_dump(made.root), chosen):
        pass
