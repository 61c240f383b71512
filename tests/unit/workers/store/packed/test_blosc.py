"""Blosc as the store uses it."""

import subprocess
import sys

import numpy as np

from workers.store.packed.chunks import BIT_SHUFFLE, NO_SHUFFLE, compressor

#: A worker is killed in the middle of its work; a semaphore of the system would stay, and be reported.
_KILLED = """
import os, signal
from multiprocessing import resource_tracker
from workers.store.packed.chunks import SHUFFLE, compressor
values = compressor("lz4", 5, SHUFFLE, 4)
assert values.decode(values.encode(bytes(4096))) == bytes(4096)
assert resource_tracker._resource_tracker._pid is None
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_same_values_give_the_same_bytes_and_come_back() -> None:
    values = np.random.default_rng(1).normal(size=300_000).astype(np.float32)
    for shuffle in (BIT_SHUFFLE, NO_SHUFFLE):
        encoded = [bytes(compressor("lz4", 5, shuffle, 4).encode(values)) for _ in range(3)]
        assert len(set(encoded)) == 1
        assert bytes(compressor("lz4", 5, shuffle, 4).decode(encoded[0])) == values.tobytes()


def test_a_killed_process_leaves_no_semaphore() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-9, "")
