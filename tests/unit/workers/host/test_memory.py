"""How much memory there is, and how much this process may use."""

import resource
from pathlib import Path

import pytest

from workers.host import resources
from workers.model import MIB


def test_a_container_may_have_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "resources.max"
    monkeypatch.setattr(resources, "_LIMIT_FILES", (str(limit), str(tmp_path / "missing")))
    machine = resources.machine_nbytes()
    assert machine > 64 * MIB
    limit.write_text("max\n")
    assert resources.machine_nbytes() == machine
    limit.write_text(f"{64 * MIB}\n")
    assert resources.machine_nbytes() == 64 * MIB


def test_what_is_left_follows_from_a_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    used = resources.data_nbytes()
    assert used > 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert resources.data_left() is None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 64 * MIB, resource.RLIM_INFINITY))
    assert 0 < (resources.data_left() or 0) <= 65 * MIB
    assert resources.status_nbytes("VmNothing") == 0
