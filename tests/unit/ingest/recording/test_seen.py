"""What black boxes of a running job hold is seen at the watcher and on the page, and triggered from there."""

import time
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ingest
from ingest.environment import TRIGGER_TOKEN_VARIABLE
from ingest.page.watchers import Watchers
from ingest.recording import black_box
from ingest.service.live_watcher import fetch_watcher, get, metrics_of
from ingest.service.service import Service
from tests.page_server import RunningPage
from tests.served_watcher import served_watcher

TOKEN = "a-token-of-sixteen-letters"  # noqa: S105  (opens the watcher of this test alone)


def look(service: Service) -> None:
    for _ in range(3):
        service.schedule.scan_soon()
        service.tick()


def post(url: str, token: str = "", method: str = "POST") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310  (http)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  (the same)
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_the_ring_and_its_incidents_are_seen_and_whoever_has_the_token_triggers(
    torch: Any, nets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del torch
    dump, store = tmp_path / "run-dump", tmp_path / "run.zarr"
    monkeypatch.setattr(black_box, "_IDLE_S", 0.01)
    monkeypatch.setenv(TRIGGER_TOKEN_VARIABLE, TOKEN)
    net = nets.Net()
    with ingest.record(net, dump, black_box=4, keep="10MiB", budget="1MiB") as recorder:
        nets.train(net, 9)
        with served_watcher(dump, store) as (url, service):
            look(service)
            (ring,) = fetch_watcher(url, 30).boxes.rings
            # The step that runs is not one of them yet.
            assert (ring.rank, ring.steps, ring.left_out) == (0, (4, 5, 6, 7), 0)
            assert 0 < ring.nbytes <= ring.keep_nbytes == 10 << 20
            assert (ring.saved_nbytes, ring.budget_nbytes) == (0, 1 << 20)
            assert ring.overhead == pytest.approx(recorder.overhead, abs=1)
            trigger = f"{url}/trigger?why=the+loss+looks+odd"
            assert [post(trigger, token) for token in ("", "another")] == [401, 401]
            assert post(trigger, TOKEN, "GET") == 405
            assert not recorder.incidents
            assert post(trigger, TOKEN) == 202
            deadline = time.monotonic() + 60
            while not recorder.incidents and time.monotonic() < deadline:
                nets.train(net, 1)
                time.sleep(0.02)
            nets.train(net, 4)
            time.sleep(0.1)
            look(service)
            watcher = fetch_watcher(url, 30)
            (incident,) = watcher.boxes.incidents
            assert incident.why == "the loss looks odd"
            values = metrics_of(get(f"{url}/metrics", 30)[1].decode())
            (ring,) = watcher.boxes.rings
            assert 0 < ring.saved_nbytes == values["dump_ingest_watcher_box_saved_bytes"]["0"]
            assert values["dump_ingest_watcher_box_incidents"][""] == 1
            with RunningPage(store, watchers=Watchers((url,), 0.2)) as page:
                live, in_store = "", f"<td>{incident.first}-{incident.last}</td>"
                while in_store not in live and time.monotonic() < deadline:
                    look(service)
                    live = page.get("/runs/run.zarr/live").text
            for words in ("Black box", incident.why, in_store, "of 10.0 MiB"):
                assert words in live, words
    with served_watcher(dump, store) as (url, service):
        look(service)
        boxes = fetch_watcher(url, 30).boxes
        assert (boxes.rings, boxes.incidents) == ((), (incident,))
        assert post(f"{url}/trigger", TOKEN) == 409
    monkeypatch.delenv(TRIGGER_TOKEN_VARIABLE)
    with served_watcher(dump, store) as (url, _):
        assert [post(f"{url}/trigger", token) for token in ("", TOKEN)] == [401, 401]
