"""What answers requests."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.page.server import HEADERS, Access
from ingest.page.watchers import Watchers
from ingest.service.service import Service
from ingest.steps.decide import CompletenessPolicy, StepPolicy, explain_table
from ingest.steps.watcher import QuietClock
from tests.in_process import run_here
from tests.npy_files import MadeDump
from tests.page_server import RunningPage
from tests.served_watcher import served_watcher

RUN = "/runs/run.zarr"
API = f"/api/v1{RUN}"
TOKEN = "a-token-of-sixteen-letters"  # noqa: S105  (opens the page of this test alone)


@pytest.mark.parametrize("path", [RUN, f"{RUN}/"])
def test_a_run_without_a_view_leads_to_its_incidents(page: RunningPage, path: str) -> None:
    got = page.get(path)
    assert (got.status, got.headers["Location"]) == (302, f"{RUN}/incidents")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        (f"{RUN}/cell?rank=7&step=2", 404, "rank 7 step 2 is not in the store"),
        (f"{RUN}/cell?step=2", 404, "The parameter rank is missing"),
        (f"{RUN}/matrix?steps=x", 404, "is not a range"),
        (f"{RUN}/matrix?stat=nonsense", 404, "is not a statistic"),
        (f"{RUN}/tensor?rank=1&step=2&name=Lag", 404, "has no tensor"),
        (f"{RUN}/nonsense", 404, "No view"),
        (f"{RUN}/matrix?evil=1", 404, "No parameter"),
        ("/runs/..%2F..%2Fetc/matrix", 404, "no run"),
        ("/nothing", 404, "No such page"),
        ("/static/..%2Fserver.py", 404, "No such page"),
    ],
)
def test_errors_say_what_is_wrong(page: RunningPage, path: str, status: int, words: str) -> None:
    got = page.get(path)
    assert got.status == status
    assert words in got.text
    assert "Traceback" not in got.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(page: RunningPage, method: str) -> None:
    assert page.get(f"{RUN}/incidents", method=method).status == 405


def test_every_answer_forbids_what_the_page_does_not_need(page: RunningPage) -> None:
    for path in (f"{RUN}/live", f"{API}/steps", "/static/page.js", "/nothing", "/openapi.json"):
        headers = page.get(path).headers
        assert {name: headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_a_foreign_name_is_refused_on_loopback(nan_log: Path) -> None:
    access = Access(hosts=frozenset(["127.0.0.1"]))
    with RunningPage(nan_log, access=access) as own:
        assert own.get("/healthz").status == 200
        assert own.get(f"{RUN}/live", Host="evil.example").status == 421


def test_a_token_is_asked_for_once(nan_log: Path) -> None:
    with RunningPage(nan_log, access=Access(token=TOKEN)) as own:
        assert own.get(f"{RUN}/live").status == 401
        assert own.get(f"{API}/steps").json["error"]["message"]
        assert own.get(f"{RUN}/live", Authorization=f"Bearer {TOKEN}").status == 200
        assert own.get(f"{RUN}/live?token=wrong").status == 401
        first = own.get(f"{RUN}/cell?token={TOKEN}&rank=1&step=2")
        assert (first.status, first.headers["Location"]) == (302, f"{RUN}/cell?rank=1&step=2")
        cookie = first.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        assert own.get(f"{RUN}/live", Cookie=cookie.partition(";")[0]).status == 200
        for elsewhere in ("//evil.example/", "/\\evil.example/", "///evil.example/"):
            assert own.get(f"{elsewhere}?token={TOKEN}").headers["Location"] == "/evil.example/"
        assert own.get("/healthz").status == 200


def test_a_run_that_is_being_read_says_so_and_comes_back(nan_log: Path) -> None:
    with RunningPage(nan_log, first_paint_s=0) as own:
        first = own.get(f"{RUN}/live")
        assert first.status in (200, 503)  # the reading may have ended by then
        if first.status == 503:
            assert "Reading what is committed" in first.text
            assert '<meta http-equiv="refresh" content="1">' in first.text
            assert first.headers["Retry-After"] == "1"
        deadline = time.monotonic() + 60
        while (got := own.get(f"{RUN}/live")).status == 503 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "Step 3" in got.text
        assert "http-equiv" not in got.text


RUN_PATH = "/runs/run.zarr"


def without_lag(watcher: dict[str, Any]) -> dict[str, Any]:
    return watcher | {"ranks": [rank | {"lag_s": 0} for rank in watcher["ranks"]]}


def commit_all(service: Service) -> None:
    """Go on until the service has committed every step that it knows."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        service.schedule.scan_soon()
        service.tick()
        rows = explain_table(service.table, service.current_policy, service.clock())
        if all(row.phase == "committed" for row in rows if row.step is not None):
            return
        time.sleep(0.02)


def test_the_live_view_shows_what_each_step_waits_for_and_follows(made: MadeDump, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    for step in range(2):
        made.add(np.ones(3), rank=0, step=step)
    policy = StepPolicy(CompletenessPolicy(quiet_s=1000, settle_s=0.1))
    ahead = [0.0]
    clock = QuietClock(lambda: time.monotonic() + ahead[0], files=lambda _: time.time() + 2000)
    with served_watcher(made.root, store, policy=policy, quiet_clock=clock) as (url, service):
        commit_all(service)
        made.add(np.ones(3), rank=0, step=7)
        service.schedule.scan_soon()
        service.tick()
        watchers = Watchers((url, "http://127.0.0.1:1"), 0.2)
        with RunningPage(store, watchers=watchers) as page:
            live = page.get(f"{RUN_PATH}/live").text
            for words in ("What steps wait for", "backlog", "free of 1000 B", "no watcher answers at", url):
                assert words in live, words
            (watcher, silent) = page.get(f"/api/v1{RUN_PATH}/watchers").json
            assert [row["step"] for row in watcher["steps"] if row["step"] is not None] == [7]
            assert watcher["ranks"][0]["pending_steps"] == 1
            assert silent["problem"]
            # The same from a shell and from Python, but for the seconds of the lag.
            printed = run_here("ls", store, "--watchers", f"{url},127.0.0.1:1", "--json").json
            assert [without_lag(row) for row in printed] == [without_lag(row) for row in (watcher, silent)]
            table = run_here("ls", store, "--watchers", f"{url},127.0.0.1:1").stdout
            assert re.search(r"answers +1 +\S+ steps? +1 step ", table)
            assert "7     waiting" in table
            asked = ingest.watchers(ingest.open_store(store), url)
            assert [known.url for known in asked] == [url]
            moment = f"/api/v1{RUN_PATH}/moment?watchers=true"
            before = page.get(moment).json["token"]
            ahead[0] = 2000.0
            commit_all(service)
            deadline = time.monotonic() + 60
            while "Every step of the dump is in the store" not in live and time.monotonic() < deadline:
                time.sleep(0.1)
                live = page.get(f"{RUN_PATH}/live").text
            assert "Every step of the dump is in the store" in live
            assert page.get(moment).json["token"] != before
