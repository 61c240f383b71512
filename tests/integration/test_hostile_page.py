"""The page against names and requests of somebody who means harm; both are in `tests/data`."""

import html
import json
import logging
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import ingest
from bench.steps import commit_tables, make_tables
from ingest.page.server import HEADERS, Access
from tests.dumps import DumpLibrary
from tests.page_server import Got, RunningPage
from tests.pipeline import ingest_directly
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store.opening import open_objects, resolve

DATA = Path(__file__).parents[1] / "data"
NAMES: list[str] = json.loads((DATA / "hostile-names.json").read_text())
REQUESTS: list[dict[str, Any]] = json.loads((DATA / "page-requests.json").read_text())
TOKEN = "a-token-of-sixteen-letters"  # noqa: S105  (opens the page of these tests alone)
#: What stands for what is too long to be written down.
LONG = {
    "{long}": "a" * 9000,
    "{endless}": "a" * 40_000,
    "{many}": "&".join(f"x{number}=1" for number in range(2000)),
    "{token}": TOKEN,
}
#: Where no name may get to: no script is written into a page, and no event of an element runs one.
FORBIDDEN_TAGS = {"base", "embed", "iframe", "object", "style"}
#: Has a shell print the arguments of each command, each with a zero byte at its end.
_PRINTS = "dump-ingest() { printf '%s\\0' \"$@\"; }"
RUN = "/runs/" + quote("<b>run.zarr", safe="")


@pytest.fixture(scope="module")
def servers(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningPage]]:
    """Pages of one run, beside which and above which there are others that nobody may see."""
    root = tmp_path_factory.mktemp("pages")
    ingest_directly(dumps["nan-log-2rank"] / "dump", root / "runs/run.zarr")
    for hidden in ("outside.zarr", "runs/.hidden.zarr"):
        shutil.copytree(root / "runs/run.zarr", root / hidden)
    hosts = frozenset(["127.0.0.1", "localhost"])
    with (
        RunningPage(root / "runs", access=Access(hosts=hosts)) as plain,
        RunningPage(root / "runs", access=Access(hosts=hosts), base="/dumps") as below,
        RunningPage(root / "runs", access=Access(token=TOKEN, hosts=hosts)) as guarded,
    ):
        yield {"": plain, "base path": below, "token": guarded}


def written_out(text: str) -> str:
    """Return a text of the corpus as it is sent."""
    for sign, long in LONG.items():
        text = text.replace(sign, long)
    return text


def raw_answer(page: RunningPage, request: Mapping[str, Any]) -> bytes:
    """Send a request as it is, which no client would, and return all that comes back."""
    given = {"Host": "127.0.0.1", "Connection": "close", **request.get("headers", {})}
    lines = [f"{request.get('method', 'GET')} {written_out(request['target'])} HTTP/1.1"]
    lines += [f"{name}: {written_out(value)}" for name, value in given.items()]
    address = urlsplit(page.url)
    answer = b""
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        while part := connection.recv(1 << 16):
            answer += part
    return answer


@pytest.mark.parametrize("group", sorted({request["group"] for request in REQUESTS}))
def test_every_request_is_answered_with_its_status_and_nothing_else(
    group: str, servers: dict[str, RunningPage], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    wrong = {}
    for request in REQUESTS:
        if request["group"] != group:
            continue
        answer = raw_answer(servers[request.get("server", "")], request)
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0
        names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
        problems = [
            status != request["status"] and f"status {status}",
            # What Tornado refuses by itself, before any path is known, has no content.
            body and status != 100 and not {name.lower().encode() for name in HEADERS} <= names and "headers",
            b"x-evil" in names and "a header of its own",
            b"Traceback" in answer and "a traceback",
            b"root:x:0" in answer and "a file of the host",
            b"<script>alert" in answer and "a script",
            b"\nLocation: //" in answer and "leads elsewhere",
            request.get("method") == "HEAD" and body and "a body",
        ]
        if any(problems):
            key = f"{request.get('method', 'GET')} {request['target']} {request.get('headers', '')}"
            wrong[key] = [problem for problem in problems if problem]
    assert wrong == {}
    assert [record.getMessage() for record in caplog.records] == []


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPage]:
    """The page of a run in which operators have all these names, and each of their tensors NaN."""
    runs = tmp_path_factory.mktemp("hostile")
    objects = open_objects(resolve(runs / "<b>run.zarr"))
    rules = load_rules().enabled
    for rank, step in ((0, 1), (0, 2), (1, 1), (1, 2)):
        key = StepKey(rank, step)
        bad = range(len(NAMES)) if step == 2 else ()
        commit_tables(objects, key, make_tables(key, NAMES, list(bad)), rules=rules)
    with RunningPage(runs) as page:
        yield page


class Elements(HTMLParser):
    """What is in a page: tags, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.texts.append(data)

    def links(self) -> list[str]:
        """Return where it leads."""
        return [attributes["href"] for tag, attributes in self.tags if tag == "a" and "href" in attributes]

    def refuse_harm(self) -> None:
        """Fail if a name has become more than a text."""
        scripts = [attributes for tag, attributes in self.tags if tag == "script"]
        assert scripts == [{"type": "module", "src": "/static/page.js"}]
        for tag, attributes in self.tags:
            assert tag not in FORBIDDEN_TAGS, tag
            assert not [name for name in attributes if name.startswith("on")], attributes
            for name in ("href", "src", "action", "formaction"):
                address = attributes.get(name, "/")
                assert address.startswith(("/", "#", "data:image/png;base64,")), address
                assert not address.startswith("//"), address


def test_names_are_text_wherever_a_page_shows_them(hostile: RunningPage) -> None:
    home = Elements(hostile.get("/").text)
    home.refuse_harm()
    assert "<b>run.zarr" in "".join(home.texts)
    cell = Elements(hostile.get(f"{RUN}/cell?rank=1&step=2").text)
    cell.refuse_harm()
    links = [link for link in cell.links() if "/tensor?" in link]
    assert len(links) == len(NAMES)
    for view in ("incidents", "live", "matrix?stat=max", "cell?rank=1&step=2&bad=1"):
        got = hostile.get(f"{RUN}/{view}")
        assert got.status == 200, got.text
        Elements(got.text).refuse_harm()


def test_every_name_has_a_view_and_lines_that_find_it(hostile: RunningPage, tmp_path: Path) -> None:
    cell = Elements(hostile.get(f"{RUN}/cell?rank=1&step=2").text)
    links = [link for link in cell.links() if "/tensor?" in link]
    listed = hostile.get(f"/api/v1{RUN}/tensors?rank=1&step=2").json
    assert [tensor["name"] for tensor in listed] == [f"MatMul.{name}.output.0" for name in NAMES]
    for name, link in zip(NAMES, links, strict=True):
        full = f"MatMul.{name}.output.0"
        got = hostile.get(link)
        assert got.status == 200, (name, got.text)
        Elements(got.text).refuse_harm()
        assert html.escape(full).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in got.text, name
        matrix = f"{RUN}/matrix?stat=max&name={quote(full, safe='')}"
        assert hostile.get(matrix).status in (200, 404)  # a name may be the glob of another one, or of none
        assert_lines_name(got, full, tmp_path)


def assert_lines_name(got: Got, name: str, scratch: Path) -> None:
    """Have a shell and Python read the lines of a page, and compare the names that they see."""
    shell, python = got.lines
    if "\0" not in name:  # no argument of a command can hold it
        done = subprocess.run(
            ["bash", "-c", f"{_PRINTS}\n{shell}"], capture_output=True, cwd=scratch, check=True
        )
        assert done.stdout.decode().split("\0")[2] == name
    assert list(scratch.iterdir()) == []
    names: dict[str, Any] = {"ingest": ingest}
    opening, expression = python.splitlines()[1:3]
    exec(opening, names)  # noqa: S102  (as a reader of the page does)
    assert eval(expression, names).name == name  # noqa: S307


def test_a_report_shows_them_as_text(hostile: RunningPage) -> None:
    text = ingest.report(ingest.open_store(f"{hostile.library.url}/<b>run.zarr"))
    for evil in ("<script", "<img src=x", "<svg/onload", " onload=", " onmouseover="):
        assert evil not in text.replace("&#34;", '"').lower() or html.escape(evil) in text
    assert not [tag for tag, _ in Elements(text).tags if tag in {"script", "iframe", "object"}]
