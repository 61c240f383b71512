"""How a command ends."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ingest.cli.exits import exit_code_of
from tests.cli import Answer, start
from tests.hanging import HangingFiles
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.errors import DamagedStore, DumpIngestError, StoreUnavailable, UsageError


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Leave the signals of the test process as they were."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("x"), 2), (DamagedStore("x"), 3), (StoreUnavailable("x"), 1), (DumpIngestError("x"), 1)],
)
def test_the_kind_of_an_error_is_the_exit_code(error: DumpIngestError, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_ends_the_process(number: signal.Signals) -> None:
    program = f"""
import signal
from ingest.cli.exits import stop_on_signals
stop = stop_on_signals()
assert not stop.is_set()
signal.raise_signal({int(number)})
assert stop.is_set()
print("asked", flush=True)
signal.raise_signal({int(number)})
print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "asked\n"), done.stderr


def test_signals_are_heard_while_a_file_of_the_dump_hangs(
    tmp_path: Path, make_hanging: Callable[[Callable[[], None]], HangingFiles]
) -> None:
    """The read is in the kernel, where nothing but SIGKILL reaches it: the process ends beside it."""
    hangs, dump = threading.Event(), MadeDump(tmp_path / "dump")
    make_hanging(hangs.set).add(dump.add(np.ones(4, "<f4")))
    with start("ingest", dump.root, "--store", tmp_path / "run.zarr") as running:
        assert hangs.wait(60)
        running.process.send_signal(signal.SIGINT)
        assert running.finish() == 130
    assert running.lines[0].startswith("stopping")


#: Every command that asks a store, each of which must answer about the undamaged steps.
ASKING = {
    "ls": ("ls", "STORE"),
    "ls --tensors": ("ls", "STORE", "--tensors"),
    "ls --problems": ("ls", "STORE", "--problems"),
    "find": ("find", "STORE", "--op-type", "MatMul"),
    "anomalies": ("anomalies", "STORE"),
    "origin": ("origin", "STORE", "--where", "max > 0"),
    "divergence": ("divergence", "STORE", "--group", "0-1"),
    "trend": ("trend", "STORE", "*"),
    "heatmap": ("heatmap", "STORE", "*"),
    "trampled": ("trampled", "STORE"),
    "audit": ("audit", "STORE"),
    "export": ("export", "STORE", "OUT"),
    "rules test": ("rules", "test", "STORE"),
    "compare": ("compare", "STORE", "STORE"),
    "compare --over-steps": ("compare", "STORE@0", "STORE@0", "--over-steps"),
    "verify": ("verify", "STORE"),
    "repair": ("repair", "STORE"),
    "consolidate": ("consolidate", "STORE", "--check"),
}


@pytest.mark.parametrize(
    ("command", "damaged"),
    [
        *((command, "zarr.json") for command in ASKING),
        *((command, "*/index/labels/c/0/0") for command in ("find", "trend", "compare", "export", "verify")),
    ],
)
def test_one_damaged_step_stops_no_answer_about_others(
    command: str, damaged: str, answer: Answer, tmp_path: Path
) -> None:
    """Every command names the step on stderr or in its list of damage, and exits with 3."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        for rank in range(2):
            dump.add(np.arange(5.0), tensor_name(time=1), step=step, rank=rank)
    ingest_directly(dump.root, store)
    (path,) = (store / "rank_0/step_1").glob(damaged)
    path.write_text("{}")
    places = {"STORE": store, "STORE@0": f"{store}@0", "OUT": tmp_path / "out"}

    done = answer(*(places.get(word, word) for word in ASKING[command]), code=3)

    assert "rank 0 step 1" in done.stderr + done.stdout
    if command not in ("verify", "repair", "consolidate", "compare"):
        assert done.stdout or command in ("export", "anomalies", "divergence", "ls --problems", "trampled")
    if command == "export":
        assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) == 5
