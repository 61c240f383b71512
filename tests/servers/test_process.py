import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.process import ServerError, ServerGroup

STARTS_A_SERVER = """
import sys
from tests.servers.process import ServerGroup
group = ServerGroup("test")
group.start("sleep", ["sh", "-c", "echo $$; exec sleep 600"])
group.wait_for("sleep", lambda: group.log_tail("sleep") != "", timeout_s=10)
print(group.log_tail("sleep"), group.root, flush=True)
sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_servers_and_their_files_do_not_outlive_a_killed_test_run() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as run:
        assert run.stdout is not None
        pid, root = run.stdout.readline().decode().split()
        assert is_running(int(pid))
        assert Path(root).exists()
        os.kill(run.pid, signal.SIGKILL)

    deadline = time.monotonic() + 10
    while is_running(int(pid)) or Path(root).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_error_ends_with_the_last_lines_of_a_server_that_ended() -> None:
    with ServerGroup("test") as group:
        group.start("broken", ["sh", "-c", "echo no disk left; exit 7"])
        with pytest.raises(ServerError, match=r"ended with 7\nno disk left"):
            group.wait_for("broken", lambda: False, timeout_s=10)
