"""One iteration of a large real dump, by its profile: bounds on objects, bytes and memory, and every bit."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.load import Load, build
from ingest.api import open_store
from ingest.reader.step import Step
from tests.stores import DATA
from workers.model import MIB
from workers.store.model import CommitSummary

pytestmark = pytest.mark.slow

PROFILE = DATA / "tinybert-large.profile.csv.xz"
#: A worker holds one shard of 128 MiB and some buffers; the plan of the step comes on top.
MAX_GROWTH = 256 * MIB

#: Ingests in a process of its own, and says by how much its peak memory exceeds what the imports need.
#: VmHWM, for what getrusage says begins with the peak of the parent.
_CHILD = """
import re, sys
from pathlib import Path
from bench.stages import Stages, ingest_here

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

before = peak()
ingest_here(Path(sys.argv[1]), Path(sys.argv[2]), Stages())
print(peak() - before)
"""


@dataclass(frozen=True)
class Ingested:
    load: Load
    step: Step
    memory_growth: int

    @property
    def summary(self) -> CommitSummary:
        return self.step.commit.summary


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    directory = tmp_path_factory.mktemp("large")
    load = build(PROFILE, directory / "dump")
    store = directory / "run.zarr"
    command = [sys.executable, "-c", _CHILD, str(load.directory), str(store)]
    child = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return Ingested(load, open_store(str(store)).step(0, 0), int(child.stdout))


def test_everything_is_there(ingested: Ingested) -> None:
    assert ingested.summary.status == "complete"
    assert ingested.summary.tensors == ingested.load.files == 5372
    assert ingested.summary.raw_bytes == ingested.load.nbytes


def test_objects_are_few(ingested: Ingested) -> None:
    root = Path(ingested.step.objects.address.url)
    written = [path for path in root.rglob("*") if path.is_file()]
    assert len(written) <= 40 + ingested.summary.stored_bytes / (128 * MIB)


def test_copies_are_stored_once(ingested: Ingested) -> None:
    assert ingested.summary.tensors - ingested.summary.duplicates == 1449
    assert ingested.summary.stored_bytes <= 0.35 * ingested.summary.raw_bytes


def test_memory_is_bounded(ingested: Ingested) -> None:
    assert ingested.memory_growth < MAX_GROWTH


def test_every_bit_comes_back(ingested: Ingested) -> None:
    tables = ingested.step.tables
    source, lead, tail = tables.label("source"), tables.label("lead"), tables.label("tail")
    compared = 0
    for row, pieces in ingested.step.payloads(ingested.step.rows(), 16 * MIB):
        expected = (ingested.load.directory / source[row]).read_bytes()
        found = lead[row].encode("latin-1") + b"".join(pieces) + tail[row].encode("latin-1")
        assert found == expected
        compared += 1
    assert compared == ingested.load.files
