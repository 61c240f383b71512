"""Whether a job should stop: by the store, and by a page that is really served."""

from pathlib import Path

import pytest

import ingest
from tests.asked_dumps import asked_dump
from tests.dumps import DumpLibrary
from tests.page_server import RunningPage
from tests.pipeline import ingest_directly
from workers.errors import UsageError
from workers.rules.load import load_rules


@pytest.fixture(scope="module")
def stores(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stop")
    rules = load_rules().enabled
    ingest_directly(asked_dump(dumps, directory / "bad"), directory / "bad.zarr", rules=rules)
    ingest_directly(asked_dump(dumps, directory / "good", [1]), directory / "good.zarr", rules=rules)
    return directory


def test_a_store_with_a_critical_incident_stops_the_job(stores: Path) -> None:
    assert ingest.should_stop(str(stores / "bad.zarr"))
    assert not ingest.should_stop(str(stores / "good.zarr"))


def test_it_is_asked_rarely_and_a_store_may_come_later(dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "later.zarr"
    assert not ingest.should_stop(str(store), every_s=3600)
    ingest_directly(asked_dump(dumps, tmp_path / "dump"), store, rules=load_rules().enabled)
    assert not ingest.should_stop(str(store), every_s=3600)
    assert ingest.should_stop(str(store), every_s=0)
    assert ingest.should_stop(str(store), every_s=3600)


def test_the_page_answers_the_same(stores: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunningPage(stores) as page:
        assert ingest.should_stop(f"{page.url}/runs/bad.zarr", every_s=0)
        assert not ingest.should_stop(f"{page.url}/runs/good.zarr/", every_s=0)
        with pytest.raises(UsageError, match="is not a run on a page"):
            ingest.should_stop(f"{page.url}/", every_s=0)
    assert not ingest.should_stop(f"{page.url}/runs/good.zarr/", every_s=0)
    assert "does not answer" in caplog.text
