"""Which incidents are told: new ones and those that have grown."""

from dataclasses import replace
from pathlib import Path

import pytest

import ingest
from ingest.reporting.webhook import IncidentPosts
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly


@pytest.fixture(scope="module")
def answer(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> ingest.Incidents:
    store = tmp_path_factory.mktemp("posts") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    return ingest.incidents(ingest.open_store(Path(store)))


def test_an_incident_is_told_again_when_another_rank_has_it(answer: ingest.Incidents) -> None:
    (incident,) = answer.incidents
    now = [incident]
    posts = IncidentPosts(lambda: replace(answer, incidents=tuple(now)))
    assert list(posts.due([2])) == [incident]
    assert list(posts.due([2, 3])) == []
    now[:] = [replace(incident, last_step=5, steps=4)]
    assert list(posts.due([5])) == []
    now[:] = [replace(incident, ranks=(0, 1))]
    assert list(posts.due([3])) == now
    now[:] = [replace(incident, ranks=(0, 1), last_step=40, steps=39)]
    assert list(posts.due([40])) == now
    posts.forget(incident.id)
    assert list(posts.due([40])) == now


def test_asking_takes_a_tenth_of_the_time(answer: ingest.Incidents) -> None:
    now = [100.0]

    def slow() -> ingest.Incidents:
        now[0] += 3
        return answer

    posts = IncidentPosts(slow, clock=lambda: now[0])
    assert posts.rest_s == 0
    assert len(list(posts.due([2]))) == 1
    assert posts.rest_s == pytest.approx(30)
