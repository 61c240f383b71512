"""Whether the environment says anything."""

import os

import pytest

from ingest.environment import sets_anything


def test_any_variable_of_ours_may_be_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("DUMP_INGEST_")]:
        monkeypatch.delenv(name)
    assert not sets_anything()
    monkeypatch.setenv("dump_ingest_store", "run.zarr")
    assert sets_anything()
