"""The scheduler and its workers; tests/integration/test_watchdog.py has a worker that hangs."""

import sys
from types import ModuleType

import pytest

from ingest.doctor import checks
from ingest.doctor.checks import check_scheduler
from ingest.settings import load
from tests.servers.cluster import DaskCluster
from workers.errors import ClusterError

pytestmark = pytest.mark.dask


def test_workers_are_counted_and_those_that_are_silent_named(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(scheduler=cluster.address).settings
    check = check_scheduler(settings)
    assert (check.ok, check.detail) == (True, f"{cluster.address}: 2 workers, 2 threads, not encrypted")
    monkeypatch.setattr(checks, "_SILENT_S", -1.0)
    check = check_scheduler(settings)
    assert not check.ok
    assert "it does not hear of tcp://127.0.0.1:" in check.detail
    assert "restart them" in check.hint


def test_a_scheduler_that_is_gone_is_an_error() -> None:
    with pytest.raises(ClusterError, match="no Dask scheduler"):
        check_scheduler(load(scheduler="tcp://127.0.0.1:9", scheduler_timeout_s=0.2).settings)


def test_a_scheduler_without_this_version_is_named(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance one that others run, from an image of their own."""

    def silences() -> None: ...

    # It is sent by its name.
    silences.__module__, silences.__qualname__ = "not_installed_there", "silences"
    module = ModuleType(silences.__module__)
    module.silences = silences  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(checks, "silences", silences)
    with pytest.raises(
        ClusterError, match="the scheduler does not have this version of dump-ingest"
    ) as error:
        check_scheduler(load(scheduler=cluster.address).settings)
    assert "for all roles" in error.value.hint
