"""Who may look, what a URL asks for, and what answers."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest

import ingest
from ingest.page.asking import ENDPOINTS, Arguments, Asked, Links, UrlParameter, matrix_asked
from ingest.page.library import Library, Moment
from ingest.page.server import HEADERS, Access, Listen, PageServer, PageSettings, access_for, base_path
from ingest.page.watchers import Watchers, addresses_of, parse_addresses
from ingest.service.live_watcher import DumpDisk, LiveWatcher, RankProgress
from ingest.service.service import Service
from ingest.steps.decide import CompletenessPolicy, StepPolicy, StepRow, explain_table
from ingest.steps.watcher import QuietClock
from tests.cli import run_here
from tests.page_server import RunningPage
from tests.services import served_watcher
from tests.stores import MadeDump
from workers import events
from workers.errors import UsageError

# What answers requests.


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


# Who may look.


LOOPBACK, EVERYWHERE = Listen("127.0.0.1", 8000), Listen("0.0.0.0", 8000)  # noqa: S104  (what is to be refused)


@pytest.mark.parametrize("words", ["8000", "host", ":1", "host:x", "host:70000"])
def test_an_address_is_host_and_port(words: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        Listen.parse(words)


def test_other_hosts_need_a_proof_or_a_decision(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="open to other hosts") as refused:
        access_for(EVERYWHERE, None, None, None, is_open=False)
    assert "--token-file" in (refused.value.hint or "")
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    assert access_for(EVERYWHERE, path, None, None, is_open=False).token == path.read_text().strip()
    assert access_for(EVERYWHERE, None, "X-User", None, is_open=False).header == "X-User"
    assert access_for(EVERYWHERE, None, None, None, is_open=True) == Access()


def test_a_token_is_long_enough_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(UsageError, match="cannot read the token"):
        access_for(LOOPBACK, path, None, None, is_open=False)
    path.write_text("short")
    with pytest.raises(UsageError, match="fewer than 16"):
        access_for(LOOPBACK, path, None, None, is_open=False)


# What the HTTP API answers, and its description.


BY_NAME = {question.name: question for question in ENDPOINTS}


def answer(moment: Moment, question: str, **given: str) -> Any:
    parameters = BY_NAME[question].parameters
    return BY_NAME[question].answer(Asked(moment, Arguments.of(given, parameters), Links("", "run.zarr")))


def test_what_needs_sketches_says_so(moment: Moment) -> None:
    given = {"name": "Log.*", "rank": "0", "step": "1"}
    with pytest.raises(UsageError, match="histogram"):
        answer(moment, "precision", **given)
    with pytest.raises(UsageError, match="marginals"):
        answer(moment, "outliers", **given)


def test_every_path_of_the_contract_is_served_and_the_other_way_round(page: RunningPage) -> None:
    document = page.get("/openapi.json").json
    assert document["openapi"].startswith("3.1")
    paths = document["paths"]
    assert set(paths) == {
        "/api/v1/runs",
        "/api/v1/moment",
        "/api/v1/runs/{run}/moment",
        "/api/v1/runs/{run}/watchers",
        *(f"/api/v1/runs/{{run}}/{question.name}" for question in ENDPOINTS),
    }
    name = "Log.Default_net-LogLoss_Log-op0.output.0"
    values = {"with": "run.zarr", "rank": "1", "step": "2", "name": name}
    for path, methods in paths.items():
        assert set(methods) == {"get"}
        asked = [
            parameter["name"]
            for parameter in methods["get"]["parameters"]
            if parameter["in"] == "query" and (parameter["required"] or parameter["name"] == "step")
        ]
        query = "&".join(f"{name}={values[name]}" for name in asked)
        got = page.get(f"{path.replace('{run}', 'run.zarr')}?{query}".rstrip("?"))
        # This page knows of no watchers, and its store has no marginals: both are said.
        status = 404 if path.endswith(("/watchers", "/outliers")) else 200
        assert (got.status, path) == (status, path), got.text
        got.json  # noqa: B018  (it must be JSON)


# What a URL asks for, and the URLs and lines that lead there.


PARAMETERS = (
    UrlParameter("rank", "integer", "The rank.", is_required=True),
    UrlParameter("name", "string", "The name of the tensor."),
    UrlParameter("partial", "boolean", "Also partial steps."),
)


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ({}, "rank is missing", "The rank."),
        ({"rank": ""}, "rank is missing", "The rank."),
        ({"rank": "1", "x" * 999: ""}, "no parameter 'xxx", "Parameters: rank, name, partial."),
        ({"rank": "-1"}, "rank: '-1' is not a whole number", ""),
        ({"rank": "1.0"}, "is not a whole number", ""),
        ({"rank": "\u0663"}, "is not a whole number", ""),  # a digit, but not of ASCII
        ({"rank": "9" * 19}, "is not a whole number", ""),
        ({"rank": "1", "name": "x" * 8193}, "name: longer than 8192", ""),
    ],
)
def test_what_a_url_has_wrong_is_named(query: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Arguments.of(query, PARAMETERS)
    assert error.value.hint == hint
    assert len(error.value.message) < 150


HOSTILE = 'a/b?c&d=#"<é>%2F'


def test_a_name_with_any_characters_stays_one_part_of_the_path() -> None:
    url = urlsplit(Links("/dumps", HOSTILE).view("tensor", name=HOSTILE, step=0, graph="", rank=None))
    assert unquote(url.path) == f"/dumps/runs/{HOSTILE}/tensor"
    assert url.path.count("/") == 4
    assert parse_qs(url.query) == {"name": [HOSTILE], "step": ["0"]}


def asked(**given: str) -> Arguments:
    return Arguments({"rank": "1", "step": "2", **given})


def test_a_step_that_is_damaged_on_all_ranks_has_a_column(nan_log: Path, tmp_path: Path) -> None:
    shutil.copytree(nan_log, tmp_path / "run.zarr")
    for rank in range(2):
        (tmp_path / f"run.zarr/rank_{rank}/step_2/zarr.json").write_bytes(b"{")
    store = ingest.open_store(tmp_path / "run.zarr")
    asked = matrix_asked(Moment.of(store), Arguments({}))
    np.testing.assert_equal(asked.to_dict(), ingest.matrix(store).to_dict())
    assert asked.state.tolist() == [[1, 3, 1]] * 2


# Where the server listens, and below which path.


@pytest.mark.parametrize("words", ["/a b", "a?b", "//a//b", "/\u00e9", "/a/../<b>"])
def test_what_is_not_a_path_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match="is not a base path"):
        base_path(words)


# tornado leaves the socket that it could not bind to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PageServer(Library(str(tmp_path), refresh_s=60), PageSettings(Listen("127.0.0.1", port)))
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}"):
            server.bind()


def test_the_server_ends_and_leaves_nothing_behind(nan_log: Path) -> None:
    before = list(events._observers)
    with RunningPage(nan_log, base="/dumps") as running:
        assert running.url.endswith("/dumps")
        assert running.get("/dumps/healthz").status == running.get("/healthz").status == 200
    assert list(events._observers) == before
    with pytest.raises(OSError, match="refused"):
        running.get("/healthz")


# The watchers of a page: addresses, one question for all viewers, and what belongs to a store.


URL = "http://node1:9108"
WATCHER = LiveWatcher(
    URL,
    store="s3://bucket/run.zarr",
    ranks=(RankProgress("0", 3.2, 4, 3, 0, 1, 2, 100),),
    disk=DumpDisk(10**9, 10**10, under_pressure=False),
    steps=(StepRow(0, 4, "waiting", "its files still change"),),
)


@pytest.mark.parametrize(
    "words", ["node1", "node1:", "node1:99999", "ftp://a:1", "u:p@host:1", "a:1/steps", "[x]:1"]
)
def test_what_is_not_an_address_is_refused_with_the_remedy(words: str) -> None:
    with pytest.raises(UsageError, match="is not an address") as refused:
        parse_addresses(words)
    assert "node1:9108" in refused.value.hint


def test_a_name_with_several_addresses_is_as_many_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, list[str]] = {"many": ["10.0.0.2", "10.0.0.1"], "one": ["10.0.0.1"]}

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise OSError
        return [(2, 1, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    assert addresses_of("http://many:9108") == ["http://10.0.0.1:9108", "http://10.0.0.2:9108"]
    assert addresses_of("http://one:9108") == ["http://one:9108"]
    assert addresses_of("http://gone:9108") == ["http://gone:9108"]


def test_watchers_are_asked_once_for_all_viewers_and_again_when_the_answers_are_old() -> None:
    asked = threading.Semaphore(0)
    now = [0.0]

    def ask(url: str, _: float) -> LiveWatcher:
        asked.release()
        return replace(WATCHER, url=url)

    watchers = Watchers(("http://127.0.0.1:1", "http://127.0.0.1:2"), 5, ask, lambda: now[0])
    for _ in range(20):
        assert len(watchers.of_store(WATCHER.store).watchers) == 2
    assert [asked.acquire(timeout=0) for _ in range(3)] == [True, True, False]
    now[0] = 5.0
    watchers.of_store(WATCHER.store)
    assert [asked.acquire(timeout=30) for _ in range(2)] == [True, True]
