"""Whether a watcher can do anything."""

from dataclasses import replace

from ingest.layouts.base import Problem
from ingest.service.explaining import Readiness
from tests.metric_values import listing, look

DENIED = Problem("rank_1", "permission denied", denied=True)


def test_a_watcher_that_may_read_something_is_ready() -> None:
    readiness = Readiness()
    assert readiness.reason == ""
    readiness.observe(replace(look([listing(0, 1)], []), problems=(DENIED,)))
    assert readiness.reason == ""
    readiness.observe(look([], []))  # the job has not begun to dump
    assert readiness.reason == ""


def test_a_watcher_that_may_read_nothing_says_what() -> None:
    readiness = Readiness()
    empty = replace(listing(1, 1), files=())
    readiness.observe(replace(look([empty], [empty]), problems=(DENIED,)))
    assert readiness.reason == "nothing of the dump can be read: rank_1: permission denied"
    readiness.observe(look([listing(1, 1)], []))
    assert readiness.reason == ""
