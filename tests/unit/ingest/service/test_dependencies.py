"""A store or cluster that does not answer: waited for, or given up."""

import threading

import pytest

from ingest.service.dependencies import Dependencies, StoreProbe
from ingest.steps.events import DependencyDown
from tests.services import Heard
from workers.errors import ClusterError, StoreUnavailable


def test_who_tries_for_ever_reports_and_goes_on() -> None:
    heard = Heard()
    Dependencies(heard.append, StoreProbe(int), retry_forever=True).endure(ClusterError("no scheduler"))
    assert [event.error.message for event in heard.of(DependencyDown)] == ["no scheduler"]


def test_who_does_not_gets_the_error() -> None:
    heard = Heard()
    with pytest.raises(ClusterError):
        Dependencies(heard.append, StoreProbe(int)).endure(ClusterError("no scheduler"))
    assert heard == []


def test_a_store_that_does_not_answer_is_asked_when_it_is_back() -> None:
    asked = threading.Event()
    dependencies = Dependencies(Heard().append, StoreProbe(asked.set), retry_forever=True)
    dependencies.endure(StoreUnavailable("away"))
    assert asked.wait(10)
