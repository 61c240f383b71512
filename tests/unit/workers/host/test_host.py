"""What the host gives: memory, paths, clocks, credentials, and files of YAML."""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from workers.errors import ClusterError, UsageError
from workers.host import resources
from workers.host.credentials import masked, masked_values, refuse_in_options, refuse_in_url
from workers.host.heartbeat import Heartbeat, answer_watchdog
from workers.host.paths import absolute, check_scratch, is_private, own_directory
from workers.host.resources import CpuLimits, Throttle, parse_cpus
from workers.host.yaml_file import load_model, parse, read_text
from workers.model import MIB, ranges_text

# How much of the processors a process takes.


ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("text", "numbers"), [("", set()), ("3", {3}), ("0-2, 8", {0, 1, 2, 8}), ("1,0-1", {0, 1})]
)
def test_processors_are_numbers_and_spans(text: str, numbers: set[int]) -> None:
    assert parse_cpus(text) == numbers
    assert parse_cpus(ranges_text(numbers, ",")) == numbers


@pytest.mark.parametrize("text", ["all", "3-1", "-1", "1-", "0x3", "9999999"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="0-3,8"):
        parse_cpus(text)


def test_priority_and_processors_are_taken_by_the_process_and_what_it_starts() -> None:
    first = min(os.sched_getaffinity(0))
    code = (
        "import os, subprocess, sys\n"
        "from workers.errors import UsageError\n"
        "from workers.host.resources import CpuLimits\n"
        "before = os.nice(0)\n"
        f"CpuLimits(5, frozenset([{first}])).apply()\n"
        "CpuLimits(2).apply()\n"  # would be a higher one
        "try: CpuLimits(cpus=frozenset([99999])).apply()\n"
        "except UsageError as exc: print(exc)\n"
        "asked = 'import os; print(os.nice(0), *os.sched_getaffinity(0))'\n"
        "print(max(before, 5), subprocess.check_output([sys.executable, '-c', asked], text=True))"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    message, hint, answer, *_ = said.splitlines()
    assert message == "cpus: none of 99999 is available here"
    assert hint == f"This process may use {first}."
    expected, nice, *cpus = answer.split()
    assert (nice, cpus) == (expected, [str(first)])


def test_where_changes_are_forbidden_only_asking_for_one_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by the units of systemd: `tests/integration/test_packages.py` runs one."""

    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "nice", forbid)
    monkeypatch.setattr(os, "sched_setaffinity", forbid)
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    CpuLimits().apply()
    for limits in (CpuLimits(nice=19), CpuLimits(cpus=frozenset(os.sched_getaffinity(0)))):
        with pytest.raises(UsageError, match="may not change its priority") as refused:
            limits.apply()
        assert "CPUAffinity=" in str(refused.value.hint)


def test_a_process_sleeps_for_what_it_used_above_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"used": 0.0, "now": 100.0}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock["now"] += seconds

    monkeypatch.setattr(time, "process_time", lambda: clock["used"])
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(time, "sleep", sleep)
    throttle = Throttle()

    def work(seconds: float) -> None:
        clock["used"] += seconds
        clock["now"] += seconds
        throttle.pay()

    work(1.0)
    assert slept == []
    throttle.limit(0.25)
    for _ in range(10):
        work(0.1)
    assert clock["used"] - 1.0 == pytest.approx(0.25 * (clock["now"] - 101.0))
    clock["now"] += 3600  # idle: does not count for later
    throttle.pay()
    slept.clear()
    work(0.2)
    assert sum(slept) == pytest.approx(0.2 / 0.25 - 0.2 - 0.05)
    work(100.0)
    assert slept[-1] == 1.0, "a process shows that it lives"


def test_a_container_may_have_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "resources.max"
    monkeypatch.setattr(resources, "_LIMIT_FILES", (str(limit), str(tmp_path / "missing")))
    machine = resources.machine_nbytes()
    assert machine > 64 * MIB
    limit.write_text("max\n")
    assert resources.machine_nbytes() == machine
    limit.write_text(f"{64 * MIB}\n")
    assert resources.machine_nbytes() == 64 * MIB


def test_what_is_left_follows_from_a_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    used = resources.data_nbytes()
    assert used > 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert resources.data_left() is None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 64 * MIB, resource.RLIM_INFINITY))
    assert 0 < (resources.data_left() or 0) <= 65 * MIB
    assert resources.status_nbytes("VmNothing") == 0


def test_what_is_available_is_a_part_of_all() -> None:
    assert 0 < resources.available_nbytes() <= resources.machine_nbytes()


# Home directories and the current directory in paths.


def test_a_current_directory_that_was_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    (tmp_path / "run").rmdir()
    with pytest.raises(UsageError, match=r"run\.zarr: the current directory was deleted"):
        absolute(Path("run.zarr"))
    assert absolute(tmp_path / "run.zarr") == tmp_path / "run.zarr"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files as `/tmp` is."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    return shared


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o701])
def test_one_that_others_can_enter_is_not_used(temporary: Path, mode: int) -> None:
    directory = temporary / f"dump-ingest-{os.getuid()}"
    directory.mkdir()
    directory.chmod(mode)
    assert own_directory() is None


def test_one_of_another_user_is_not_used(temporary: Path, other_user: int) -> None:
    directory = temporary / f"dump-ingest-{os.getuid()}"
    directory.mkdir(mode=0o700)
    os.chown(directory, other_user, other_user)
    assert own_directory() is None


def test_a_link_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (temporary / f"dump-ingest-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert own_directory() is None


def test_nothing_is_private_where_others_may_rename_it(temporary: Path) -> None:
    """In a directory without the sticky bit, they could put another one in its place."""
    directory = temporary / "mine"
    directory.mkdir(mode=0o700)
    assert is_private(directory)
    temporary.chmod(0o777)
    assert not is_private(directory)


def test_a_scratch_directory_may_be_read_by_others_but_not_written(temporary: Path) -> None:
    directory = temporary / "dask-scratch-space"
    directory.mkdir(mode=0o755)
    check_scratch(directory)
    directory.chmod(0o777)
    with pytest.raises(ClusterError, match="dask-scratch-space belongs to another user, or others may"):
        check_scratch(directory)


# Dask goes on when the wall clock jumps.


_DAY_S = 86_400.0
#: Sends messages through Dask, and has a heartbeat, while the wall clock of the process jumps.
_PROGRAM = """
import asyncio, sys, time
jump_s, steady = float(sys.argv[1]), sys.argv[2] == "steady"
offset, right = 0.0, time.time
time.time = wall = lambda: right() + offset
import distributed
from distributed.batched import BatchedSend
from distributed.core import connect, Server
from tornado.ioloop import IOLoop, PeriodicCallback
from workers.host.resources import steady_dask
if steady:
    steady_dask()

class Comm:
    sent = []
    def closed(self): return False
    async def write(self, payload, **_):
        Comm.sent += payload
        return 1

async def main():
    global offset
    beats = []
    heartbeat = PeriodicCallback(lambda: beats.append(1), 50)
    heartbeat.start()
    stream = BatchedSend(interval="50ms", loop=IOLoop.current())
    stream.start(Comm())
    stream.send("before")
    await asyncio.sleep(0.02)
    offset = jump_s  # while the next message is held back
    stream.send("after")
    await asyncio.sleep(0.3)
    offset = 0.0  # and right again
    before = len(beats)
    await asyncio.sleep(1.0)
    print(Comm.sent, len(beats) - before > 3)
    sys.stdout.flush()
    import os; os._exit(0)

asyncio.run(main())
"""


def _run(jump_s: float, how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(jump_s), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("jump_s", [-_DAY_S, 7200.0])
def test_messages_and_heartbeats_go_on(jump_s: float) -> None:
    assert _run(jump_s, "steady") == "['before', 'after'] True"


def test_dask_alone_stops_for_as_long_as_the_clock_was_behind() -> None:
    """If this fails, Dask and Tornado use a steady clock by themselves: drop ours."""
    assert _run(-_DAY_S, "as it is") == "['before'] False"


# What systemd is told of a process.


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(0.0)
        yield listening


def told(systemd: socket.socket) -> list[bytes]:
    """Return the messages since the last call."""
    messages = []
    while True:
        try:
            messages.append(systemd.recv(100))
        except BlockingIOError:
            return messages


def test_systemd_hears_that_the_service_is_ready_and_beats_some_times_in_an_interval(
    systemd: socket.socket, tmp_path: Path
) -> None:
    heart = Heartbeat({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})
    heart.tell_ready()
    assert told(systemd)[:1] == [b"READY=1"]
    started, beats = time.monotonic(), 0
    while time.monotonic() < started + 0.5:
        heart.beat()
        beats += 1
    messages = told(systemd)
    assert set(messages) == {b"WATCHDOG=1"}
    assert len(messages) < beats / 10


def test_the_abstract_namespace_and_a_manager_that_is_gone(tmp_path: Path) -> None:
    name = f"dump-ingest-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        Heartbeat({"NOTIFY_SOCKET": f"@{name}"}).tell_ready()
        assert listening.recv(100) == b"READY=1"
    Heartbeat({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell_ready()


def waiting(systemd: socket.socket) -> Iterator[bytes]:
    """Yield the messages that have come."""
    with suppress(BlockingIOError):
        while True:
            yield systemd.recv(100)


@pytest.mark.parametrize("asked", [{"WATCHDOG_USEC": "40000"}, {}], ids=["asked", "not-asked"])
def test_a_manager_hears_what_it_asked_for(asked: dict[str, str], tmp_path: Path) -> None:
    server: Any = SimpleNamespace(periodic_callbacks={})
    heard: list[bytes] = []

    async def serve() -> None:
        answer_watchdog(server, {"NOTIFY_SOCKET": str(tmp_path / "notify"), **asked})
        for callback in server.periodic_callbacks.values():
            callback.start()
        while asked and heard[-1:] != [b"WATCHDOG=1"]:
            await asyncio.sleep(0.02)
            heard.extend(waiting(manager))

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        asyncio.run(asyncio.wait_for(serve(), 30))
        heard.extend(waiting(manager))
    assert heard[0] == b"READY=1"
    assert (b"WATCHDOG=1" in heard) is bool(asked)
    assert len(server.periodic_callbacks) == len(asked)


# Credentials are recognised, refused, and not shown.


CANARY = "hunter2Canary"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIA:{CANARY}@bucket/run.zarr",
        f"s3://AKIA:abc/{CANARY}/+x@bucket/run.zarr",
        f"https://user:{CANARY}@host:9000/run.zarr",
        f"simplecache::s3://AKIA:{CANARY}@bucket/run.zarr",
        f"https://host/run.zarr?X-Amz-Signature={CANARY}",
        f"https://host/run.zarr?a=1&sig={CANARY}&b=2",
        f"abfs://c@account.dfs/run.zarr?access_token={CANARY}",
    ],
)
def test_a_url_with_credentials_is_refused_without_printing_them(url: str) -> None:
    with pytest.raises(UsageError, match="holds credentials") as raised:
        refuse_in_url(url)
    assert CANARY not in f"{raised.value.message} {raised.value.hint}"
    assert CANARY not in masked(f"cannot open {url}: refused")


@pytest.mark.parametrize(
    "url",
    [
        "/data/a:b@c",
        "s3://bucket/run.zarr",
        "s3://bucket/at@home",
        "http://host:9000/at@home",
        "abfs://container@account.dfs.core.windows.net/run.zarr",
        "tls://10.0.0.1:8786",
        "https://host/x?page=3",
    ],
)
def test_a_url_without_is_not(url: str) -> None:
    refuse_in_url(url)
    assert masked(url) == url


@pytest.mark.parametrize(
    "options",
    [
        {"secret": CANARY},
        {"key": CANARY},
        {"client_kwargs": {"aws_session_token": CANARY}},
        {"layers": [{"password": CANARY}]},
        {"endpoint_url": f"https://user:{CANARY}@host"},
    ],
)
def test_options_with_credentials_are_refused_and_masked(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="looks like a credential") as raised:
        refuse_in_options(options)
    assert CANARY not in f"{raised.value.message} {raised.value.hint}"
    assert CANARY not in str(masked_values(options))


def test_options_without_are_kept() -> None:
    options = {"anon": True, "SSEKMSKeyId": "alias", "client_kwargs": {"endpoint_url": "http://h:1"}}
    refuse_in_options(options)
    assert masked_values(options) == options


# YAML that a user writes: values, their lines, and what is refused.


TEXT = """\
name: run

rules:
  - name: first
    ranks: [0, 1]
  -
    name: second
"""


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    size: int = 0


class Entries(BaseModel):
    model_config = ConfigDict(extra="forbid")

    entries: list[Entry] = []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ((), 1),
        (("name",), 1),
        (("rules",), 3),
        (("rules", 0), 4),
        (("rules", 0, "ranks"), 5),
        (("rules", 0, "ranks", 1), 5),
        (("rules", 1, "name"), 7),
        (("rules", 1, "none"), 7),
        (("rules", 9), 3),
        (("none", 0), 1),
    ],
)
def test_a_value_knows_its_line(place: tuple[str | int, ...], line: int) -> None:
    """What does not exist has the line of what is above it."""
    assert parse(TEXT, "f.yml").at(*place) == f"f.yml:{line}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [", "f.yml:2: not valid YAML: "),
        ("a:\n  b: 1\n c: 2\n", "f.yml:3: not valid YAML: "),
        ("a: \x00", "f.yml: not valid YAML: "),
        ("a: 1\n---\nb: 2", "f.yml:2: but found another document"),
        ("\na: !!python/name:os.system", "f.yml:2: could not determine a constructor"),
        ("a: 1\nb: 2025-02-30", "f.yml:2: "),
        (f"a: 1\nb: {'9' * 5000}", "f.yml:2: a number of 5000 digits is too long"),
        (f"a: 1\nb: 0x{'f' * 5000}", "f.yml:2: a number of 5002 digits is too long"),
        ("a: {b: 1,\n b: 2}", "f.yml:2: b occurs twice"),
        ("a: &x 1\nb: *x", "f.yml:2: aliases are not allowed"),
        ("[" * 5000, "f.yml:1: nested too deeply"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "f.yml")
    assert raised.value.message.startswith(message)


def test_every_mistake_of_a_model_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "e.yml"
    path.write_text("entries:\n  - name: a\n    size: big\n  - name: b\n    sise: 1\n")
    with pytest.raises(UsageError) as raised:
        load_model(path, Entries, "See the example.")
    first, second = raised.value.message.splitlines()
    assert first.startswith(f"{path}:3: entries.0.size: ")
    assert second == f"{path}:5: entries.1.sise: is not known"
    assert raised.value.hint == "See the example."


def test_a_file_that_refers_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.yml"
    path.write_text("entries: &a [*a]")
    with pytest.raises(UsageError):
        load_model(path, Entries, "")


def test_what_is_not_a_text_file_of_this_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.yml"
    with pytest.raises(UsageError, match="No such file"):
        read_text(path)
    with pytest.raises(UsageError, match="Is a directory"):
        read_text(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_text(path)
    path.write_bytes(b"abcd")
    with pytest.raises(UsageError, match="larger than 3 bytes"):
        read_text(path, max_nbytes=3)


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "a:\n  " + "[" * 100_000])
def test_deep_nesting_is_refused_at_once(text: str) -> None:
    before = time.process_time()
    with pytest.raises(UsageError, match=r"rules.yml:\d+: nested too deeply"):
        parse(text, "rules.yml")
    assert time.process_time() - before < 5
