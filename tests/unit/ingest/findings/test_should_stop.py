"""Whether a job should stop: by the store, and by a page that is really served."""

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ingest
from tests.page_server import RunningPage
from tests.stores import DumpLibrary, asked_dump, ingest_directly
from workers.errors import UsageError
from workers.rules.schema import load_rules


@pytest.fixture(scope="module")
def stores(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stop")
    rules = load_rules().enabled
    ingest_directly(asked_dump(dumps, directory / "bad"), directory / "bad.zarr", rules=rules)
    ingest_directly(asked_dump(dumps, directory / "good", [1]), directory / "good.zarr", rules=rules)
    return directory


#: A shared machine may be slow: an answer may take this long.
WAIT_S = 60.0


def asked(url: str, **options: float) -> bool:
    return ingest.should_stop(url, wait_s=WAIT_S, **options)  # type: ignore[arg-type]


def test_a_store_with_a_critical_incident_stops_the_job(stores: Path) -> None:
    assert asked(str(stores / "bad.zarr"))
    assert not asked(str(stores / "good.zarr"))


def test_a_resumed_job_is_stopped_by_incidents_of_its_own(stores: Path) -> None:
    assert asked(str(stores / "bad.zarr"), since=time.time() - 3600)
    assert not asked(str(stores / "bad.zarr"), since=time.time() + 3600)


def test_the_page_answers_the_same(stores: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunningPage(stores) as page:
        assert asked(f"{page.url}/runs/bad.zarr", every_s=0)
        assert not asked(f"{page.url}/runs/bad.zarr", every_s=0, since=time.time() + 3600)
        assert not asked(f"{page.url}/runs/good.zarr/", every_s=0)
        with pytest.raises(UsageError, match="is not a run on a page"):
            asked(f"{page.url}/", every_s=0)
    assert not asked(f"{page.url}/runs/good.zarr/", every_s=0)
    assert "does not answer" in caplog.text


def test_a_page_that_never_answers_holds_no_training_step_up(caplog: pytest.LogCaptureFixture) -> None:
    """It accepts the connection, and is silent; one thread asks it, however often the job asks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/runs/run.zarr"
        assert not any(ingest.should_stop(url, every_s=0, wait_s=0) for _ in range(100))
        asking = [thread for thread in threading.enumerate() if thread.name == "dump-ingest-should-stop"]
        assert len(asking) == 1
    asking[0].join(WAIT_S)
    assert caplog.text.count("does not answer") == 1


def test_the_page_is_asked_without_what_reads_stores() -> None:
    """The environment of a job may be slow to import it, and asks in the training loop."""
    code = (
        "import sys, ingest; ingest.should_stop('http://127.0.0.1:9/runs/run.zarr');"
        "print({'numba', 'zarr', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
