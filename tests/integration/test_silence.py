"""A store that accepts requests and does not answer; and Ctrl-C, whatever a command is at."""

import os
import pty
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.cli import PROGRAM, environment, own_workers, run, start
from tests.faults.proxy import NORMAL, NetworkCondition, Proxy
from tests.servers.ceph import CephS3, S3Bucket
from tests.servers.process import free_port, http_get
from tests.stores import MadeDump, tensor_name

# Run the command on a terminal of its own, and press Ctrl-C.


CTRL_C = b"\x03"


@dataclass(frozen=True, slots=True)
class Pressed:
    """How a command ended on which Ctrl-C was pressed."""

    code: int
    printed: str
    """All that it printed, also before."""
    seconds: float
    """From Ctrl-C to the end."""
    pid: int


def press_ctrl_c(
    *args: object,
    when: Callable[[int, str], bool],
    env: Mapping[str, str] | None = None,
    presses: int = 1,
    timeout_s: float = 60,
) -> Pressed:
    """Run the command, press Ctrl-C as soon as `when` says so, and wait for the end.

    Args:
        args: of the command.
        when: called with the process id and what was printed so far.
        env: added to the environment.
        presses: how often Ctrl-C is pressed, with half a second in between.
        timeout_s: how long to wait for `when`, and then for the end.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            # In the background, tests ignore Ctrl-C, and so would the command.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(PROGRAM, [PROGRAM, *map(str, args)], environment(env))  # noqa: S606 (on its own terminal)
        finally:
            os._exit(127)
    printed, pressed_at, left = "", 0.0, presses
    until = time.monotonic() + timeout_s
    try:
        while time.monotonic() < until:
            if select.select([terminal], [], [], 0.05)[0]:
                piece = b""
                with suppress(OSError):  # it has ended
                    piece = os.read(terminal, 65536)
                if not piece:
                    break
                printed += piece.decode(errors="replace")
            if left and (when(pid, printed) if left == presses else time.monotonic() - pressed_at > 0.5):
                os.write(terminal, CTRL_C)
                pressed_at = time.monotonic()
                until, left = pressed_at + timeout_s, left - 1
        seconds = time.monotonic() - pressed_at
        assert pressed_at, f"was not ready for Ctrl-C:\n{printed}"
        with suppress(ProcessLookupError):
            os.kill(pid, 0 if time.monotonic() < until else signal.SIGKILL)
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    return Pressed(os.waitstatus_to_exitcode(status), printed, seconds, pid)


pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def black_hole() -> Iterator[dict[str, str]]:
    """The environment for a store that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "default",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
        }
        server.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


@pytest.fixture
def made(tmp_path: Path) -> MadeDump:
    made = MadeDump(tmp_path / "dump")
    _add(made, 0)
    return made


def _add(made: MadeDump, step: int, nbytes: int = 4096) -> None:
    values = np.random.default_rng(step).normal(size=nbytes // 4).astype(np.float32)
    made.add(values, tensor_name(), step=step)


@pytest.mark.parametrize("command", ["ingest", "find"])
def test_commands_give_up_on_a_store_that_does_not_answer(
    command: str, black_hole: dict[str, str], made: MadeDump
) -> None:
    env = {**black_hole, "DUMP_INGEST_STORE_TIMEOUT_S": "2"}
    store = "s3://bucket/run.zarr"
    args = [made.root, "--store", store] if command == "ingest" else [store]
    started = time.monotonic()
    done = run(command, *args, env=env, code=1)
    assert time.monotonic() - started < 60  # s3fs and botocore alone: 413 s
    assert "no answer for 2 s" in done.stderr
    assert "store_timeout_s" in done.stderr


def test_watch_says_that_the_store_is_silent_goes_on_and_ends(
    ceph: CephS3, s3_bucket: S3Bucket, s3_environment: dict[str, str], made: MadeDump
) -> None:
    port, upstream = free_port(), urlsplit(ceph.endpoint_url).port
    assert upstream is not None

    def pending() -> float:
        lines = http_get(port, "/metrics")[1].decode().splitlines()
        name = "dump_ingest_watcher_pending_steps{"
        return sum(float(line.split()[1]) for line in lines if line.startswith(name))

    with Proxy(upstream, seed=0) as proxy:
        env = {
            **s3_environment,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            "DUMP_INGEST_METRICS": f"127.0.0.1:{port}",
            "DUMP_INGEST_STORE_TIMEOUT_S": "5",
            "DUMP_INGEST_DRAIN_S": "20",
        }
        with start("watch", made.root, "--store", s3_bucket.url, env=env) as watch:
            watch.wait_until(lambda: len(watch.events("step_committed")) == 1, timeout_s=90)
            proxy.set(NetworkCondition("black hole"))
            _add(made, 1)
            watch.wait_until(lambda: "no answer for 5 s" in watch.said, timeout_s=60)
            for step in (2, 3):
                _add(made, step)
            watch.wait_until(lambda: pending() == 3, timeout_s=60)  # it still looks at the dump
            proxy.set(NORMAL)
            watch.wait_until(lambda: len(watch.events("step_committed")) == 4, timeout_s=90)
            # The next one stops in the middle of what it sends.
            proxy.set(NetworkCondition("stall", nbytes=100))
            _add(made, 4, 2**20)
            _add(made, 5)
            troubles = len(watch.events("trouble"))
            watch.wait_until(lambda: len(watch.events("trouble")) > troubles, timeout_s=60)
            started = time.monotonic()
            assert watch.terminate() == 4  # steps are left
            assert time.monotonic() - started < 40  # before: 1650 s, and not ended


@pytest.mark.parametrize("command", ["verify", "export"])
def test_ctrl_c_ends_a_command_that_waits_for_the_store(
    command: str, black_hole: dict[str, str], tmp_path: Path
) -> None:
    more = [str(tmp_path / "out")] if command == "export" else []
    begun = time.monotonic()
    pressed = press_ctrl_c(
        command,
        "s3://bucket/run.zarr",
        *more,
        env=black_hole,
        when=lambda _pid, _printed: time.monotonic() - begun > 4,
    )
    assert (pressed.code, "Traceback" in pressed.printed) == (130, False), pressed.printed
    assert pressed.printed.count("stopping") == 1
    assert pressed.seconds < 20


def test_ctrl_c_ends_ingest_and_its_workers(tmp_path: Path) -> None:
    made = MadeDump(tmp_path / "dump")
    for step in range(12):
        _add(made, step, 8 * 2**20)
    store, workers = tmp_path / "run.zarr", set[int]()

    def is_busy(pid: int, _printed: str) -> bool:
        workers.update(own_workers(pid))
        return bool(list(store.glob("rank_0/step_*")))

    pressed = press_ctrl_c("ingest", made.root, "--store", store, when=is_busy, timeout_s=90)
    assert (pressed.code, "Traceback" in pressed.printed) == (130, False), pressed.printed
    assert "stopping: finishing " in pressed.printed
    assert "Ctrl-C again to give up" in pressed.printed
    assert pressed.seconds < 20  # before: 62 s
    _wait_for_end(workers)
    run("verify", store)
    run("ingest", made.root, "--store", store)


def test_a_second_ctrl_c_ends_at_once(black_hole: dict[str, str], made: MadeDump) -> None:
    begun = time.monotonic()
    pressed = press_ctrl_c(
        "watch",
        made.root,
        "--store",
        "s3://bucket/run.zarr",
        env=black_hole,
        presses=2,
        when=lambda _pid, _printed: time.monotonic() - begun > 5,
    )
    assert (pressed.code, "Traceback" in pressed.printed) == (130, False), pressed.printed
    assert pressed.seconds < 5


def test_workers_end_when_their_watcher_is_killed(tmp_path: Path, made: MadeDump) -> None:
    with start("watch", made.root, "--store", tmp_path / "run.zarr") as watch:
        watch.wait_until(lambda: watch.events("step_committed"), timeout_s=90)
        workers = own_workers(watch.pid)
        assert workers
        watch.kill()
    _wait_for_end(workers)


def _wait_for_end(pids: set[int] | list[int]) -> None:
    until = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):  # noqa: PTH110
        assert time.monotonic() < until, f"still there: {pids}"
        time.sleep(0.1)
