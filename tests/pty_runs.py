"""Run the command on a terminal of its own, and press Ctrl-C."""

import os
import pty
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tests.cli import PROGRAM, environment

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
