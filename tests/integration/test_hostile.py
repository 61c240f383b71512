"""What an attacker may put into dumps, stores and requests; and what is wrong with input of others."""

import html
import json
import logging
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import zarr

import ingest
from bench.steps import commit_tables, make_tables
from ingest.page.server import HEADERS, Access
from tests import checker
from tests.cli import Finished, run, run_here
from tests.hostile import DUMP_CASES, STORE_CASES
from tests.page_server import Got, RunningPage
from tests.servers.ceph import CephS3, S3Bucket
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port
from tests.stores import DumpLibrary, ingest_directly
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store.opening import open_objects, resolve

# Dumps and stores of somebody who means harm; and that a secret stays one.


ROOT = Path(__file__).parents[2]
CASES = {case: outcome for cases in (DUMP_CASES, STORE_CASES) for case, (_, outcome) in cases.items()}


def test_nothing_crashes_hangs_escapes_or_takes_memory(tmp_path: Path) -> None:
    """Each case in a process that has no more than 4 GiB of address space."""
    words = [sys.executable, "-m", "tests.hostile", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == CASES


def test_the_documented_table_is_what_was_tested() -> None:
    text = (ROOT / "docs/security.md").read_text()
    rows = re.findall(r"^\| (?:a dump|a store) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert dict(rows) == CASES


# The page against names and requests of somebody who means harm; both are in `tests/data`.


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


# What is wrong is said once, in a sentence, with what to do about it; and nothing is written.


@pytest.fixture
def dump(dumps: DumpLibrary) -> Path:
    return dumps["longnames-1rank"] / "dump"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "run.zarr"


def refused(
    *words: object,
    code: int,
    says: Sequence[str],
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Finished:
    """Run a command that must fail with one error of at most two lines, and print no data.

    In this process, unless it has a prefix or variables of its own, such as those of an object store, whose
    clients this process would keep.
    """
    if env is None and not prefix:
        done = run_here(*words, code=code)
    else:
        done = run(*words, code=code, env=env, prefix=prefix)
    assert done.stdout in {"", "[]\n"}
    assert done.stderr.count("error:") == 1, done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("retrying")]) <= 2, (
        done.stderr
    )
    for word in says:
        assert word in done.stderr, done.stderr
    return done


class TestDump:
    def test_absent(self, tmp_path: Path, store: Path) -> None:
        """A mistyped path is told from an empty one."""
        refused(
            "ingest", tmp_path / "nowhere", "-s", store, code=2, says=["nowhere does not exist", "rank_0"]
        )
        assert not store.exists()

    def test_a_file(self, dump: Path, store: Path) -> None:
        """A single tensor is not a dump."""
        file = next(dump.rglob("*.npy"))
        refused("ingest", file, "-s", store, code=2, says=["is not a directory"])
        assert not store.exists()

    @pytest.mark.parametrize("names", [(), ("notes.txt", "logs/today.log")], ids=["empty", "something_else"])
    def test_no_known_layout(self, names: Sequence[str], tmp_path: Path, store: Path) -> None:
        """The answer says what a dump looks like."""
        directory = tmp_path / "other"
        directory.mkdir()
        for name in names:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text("x")
        refused("ingest", directory, "-s", store, code=2, says=["no dump of a known layout", "rank_{r}"])
        assert not store.exists()

    def test_two_dumps(self, dump: Path, tmp_path: Path, store: Path) -> None:
        """Their ranks would collide: neither is taken."""
        for name in ("monday", "tuesday"):
            shutil.copytree(dump, tmp_path / "dumps" / name)
        refused("ingest", tmp_path / "dumps", "-s", store, code=2, says=["2 dumps", "monday", "tuesday"])
        assert not store.exists()

    def test_unreadable(self, dump: Path, unprivileged: tuple[str, ...], tmp_path: Path, store: Path) -> None:
        """The directory of another user is not an empty one."""
        private = tmp_path / "private"
        shutil.copytree(dump, private)
        private.chmod(0)
        refused(
            "ingest", private, "-s", store, code=1, says=["permission denied", "setfacl"], prefix=unprivileged
        )
        private.chmod(0o700)
        assert not store.exists()


class TestStore:
    def test_none_named(self, dump: Path) -> None:
        """There is no default place to write to."""
        refused("ingest", dump, code=2, says=["no store", "--store"])

    def test_not_writable(self, dump: Path, unprivileged: tuple[str, ...], tmp_path: Path) -> None:
        """Owner and mode of the directory are the matter."""
        directory = tmp_path / "readonly"
        directory.mkdir(mode=0o555)
        refused(
            "ingest",
            dump,
            "-s",
            directory / "run.zarr",
            code=1,
            says=["cannot write", "Permission denied", "owner and mode"],
            prefix=unprivileged,
        )
        assert list(directory.iterdir()) == []

    @pytest.mark.parametrize(
        "words", [("ls",), ("verify",), ("show", "x", "-r", "0", "-n", "0"), ("export", "out")]
    )
    def test_absent_for_a_reader(self, words: tuple[str, ...], tmp_path: Path) -> None:
        """Reading makes no store."""
        command, *rest = words
        nowhere = tmp_path / "nowhere"
        refused(command, nowhere, *rest, code=2, says=["no dump-ingest store", "Is the URL right?"])
        assert not nowhere.exists()

    @pytest.mark.parametrize("command", ["ingest", "ls"])
    def test_of_a_newer_version(self, command: str, dump: Path, store: Path) -> None:
        """A store that this version cannot understand is not touched."""
        store.mkdir()
        attributes = {"dump_ingest": {"format_version": 99}}
        root = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        (store / "zarr.json").write_text(json.dumps(root))
        before = checker.objects(store)
        words = (dump, "-s", store) if command == "ingest" else (store,)
        refused(command, *words, code=1, says=["store format 99", "Upgrade"])
        assert checker.objects(store) == before

    @pytest.mark.parametrize("command", ["ingest", "ls"])
    def test_of_somebody_else(self, command: str, dump: Path, store: Path) -> None:
        """Other Zarr data is not mixed with ours."""
        zarr.create_group(store).create_array("weights", shape=(4,), dtype="f4")
        before = checker.objects(store)
        words = (dump, "-s", store) if command == "ingest" else (store,)
        refused(command, *words, code=1, says=["not a dump-ingest store"])
        assert checker.objects(store) == before

    def test_unknown_protocol(self, dump: Path) -> None:
        """A mistyped scheme is not the name of a directory."""
        refused("ingest", dump, "-s", "s4://bucket/run.zarr", code=2, says=["s4", "s3://bucket"])


@pytest.mark.s3
class TestObjectStore:
    def test_wrong_credentials(self, dump: Path, s3_bucket: S3Bucket, s3_environment: dict[str, str]) -> None:
        """The message names the variables, and not the secret."""
        env = {**s3_environment, "AWS_SECRET_ACCESS_KEY": "not-the-secret"}
        words = ("ingest", dump, "-s", s3_bucket.url)
        done = refused(*words, code=1, says=["AWS_SECRET_ACCESS_KEY"], env=env)
        assert "not-the-secret" not in done.stderr
        assert checker.objects(s3_bucket) == {}

    def test_no_credentials(self, dump: Path, s3_bucket: S3Bucket, s3_environment: dict[str, str]) -> None:
        """Nor is the lack of any taken for a passing trouble."""
        env = {name: value for name, value in s3_environment.items() if "KEY" not in name}
        env["AWS_EC2_METADATA_DISABLED"] = "true"
        refused("ingest", dump, "-s", s3_bucket.url, code=1, says=["AWS_ACCESS_KEY_ID"], env=env)
        assert checker.objects(s3_bucket) == {}

    def test_no_bucket(self, dump: Path, s3_cluster: DaskCluster, s3_environment: dict[str, str]) -> None:
        """Buckets are not made by the way: they cost, and they have policies."""
        words = ("ingest", dump, "-s", "s3://no-such-bucket/run.zarr", "--scheduler", s3_cluster.address)
        refused(*words, code=1, says=["no such bucket", "Create the bucket"], env=s3_environment)
        refused("ls", "s3://no-such-bucket/run.zarr", code=2, says=["Is the URL right?"], env=s3_environment)

    def test_gateway_down(self, dump: Path, s3_environment: dict[str, str]) -> None:
        """The command does not wait for ever."""
        env = {**s3_environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
        refused("ingest", dump, "-s", "s3://bucket/run.zarr", code=1, says=["cannot read", "again"], env=env)

    @pytest.mark.campaign
    def test_quota_exceeded_on_the_way(
        self,
        *,
        dumps: DumpLibrary,
        ceph: CephS3,
        s3_bucket: S3Bucket,
        s3_cluster: DaskCluster,
        s3_environment: dict[str, str],
        tmp_path: Path,
    ) -> None:
        """What is committed stays and is whole; with more room, the same command does the rest."""
        dump = dumps["nan-log-2rank"] / "dump"
        words = ("ingest", dump, "-s", s3_bucket.url, "--scheduler", s3_cluster.address)
        ceph.set_quota(s3_bucket.name, 200 << 10)

        done = run(*words, code=4, env={**s3_environment, "DUMP_INGEST_INFLIGHT_SIZE": "1"})

        assert done.stderr.count("error:") == 1
        assert "QuotaExceeded" in done.stderr
        committed = checker.leaves(checker.download(s3_bucket, tmp_path / "full"))
        assert 0 < len(committed) < 8

        ceph.set_quota(s3_bucket.name, None)
        run(*words, env=s3_environment)
        checker.check(checker.download(s3_bucket, tmp_path / "done"), dump)


class TestCluster:
    @pytest.mark.parametrize("command", ["ingest", "doctor"])
    def test_no_scheduler(self, command: str, dump: Path, store: Path) -> None:
        """A scheduler that is not there is named, and not replaced by workers of its own."""
        address = f"tcp://127.0.0.1:{free_port()}"
        words = (command, dump, "-s", store, "--scheduler", address)
        env = {"DUMP_INGEST_SCHEDULER_TIMEOUT_S": "1"}
        if command == "ingest":
            refused(*words, code=1, says=[address, "dask scheduler"], env=env)
        else:
            assert address in run(*words, code=1, env=env).stdout
        assert checker.objects(store) == {}
