"""Dask goes on when the wall clock jumps."""

import subprocess
import sys

import pytest

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
