"""What watchers say, through the page: on the live view and as JSON."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np

import ingest
from ingest.page.watchers import Watchers
from ingest.service.service import Service
from ingest.steps.decide import CompletenessPolicy, StepPolicy
from ingest.steps.explain import explain_table
from ingest.watching.watcher import QuietClock
from tests.in_process import run_here
from tests.npy_files import MadeDump
from tests.page_server import RunningPage
from tests.served_watcher import served_watcher

RUN = "/runs/run.zarr"


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


def test_without_watchers_the_live_view_says_what_is_missing(page: RunningPage) -> None:
    assert "Only what is in the store is shown" in page.get(f"{RUN}/live").text
    refused = page.get(f"/api/v1{RUN}/watchers")
    assert refused.status == 404
    assert "--watchers" in refused.json["error"]["hint"]


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
            live = page.get(f"{RUN}/live").text
            for words in ("What steps wait for", "backlog", "free of 1000 B", "no watcher answers at", url):
                assert words in live, words
            (watcher, silent) = page.get(f"/api/v1{RUN}/watchers").json
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
            moment = f"/api/v1{RUN}/moment?watchers=true"
            before = page.get(moment).json["token"]
            ahead[0] = 2000.0
            commit_all(service)
            deadline = time.monotonic() + 60
            while "Every step of the dump is in the store" not in live and time.monotonic() < deadline:
                time.sleep(0.1)
                live = page.get(f"{RUN}/live").text
            assert "Every step of the dump is in the store" in live
            assert page.get(moment).json["token"] != before


def test_silent_watchers_leave_what_is_in_the_store(nan_log: Path) -> None:
    watchers = Watchers(("http://127.0.0.1:1",))
    with RunningPage(nan_log, watchers=watchers) as page:
        live = page.get(f"{RUN}/live").text
    assert "no watcher answers" in live
    assert "Step 3" in live
