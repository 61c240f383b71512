"""Tensors larger than the memory of a worker."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from tests.device_writer import write
from tests.dump_data_writer import DATA_TYPES, FORMAT_CODES, Tensor, dump_data
from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import ingest_directly
from workers.arrays.statistics import COUNT_FIELDS, summarise
from workers.model import MIB
from workers.tasks import convert as convert_module
from workers.tasks import entry_statistics

#: Formats, their host shapes, groups, and whether the tensor can be cut into slabs.
LAYOUTS = [
    ("NC1HWC0", (5, 40, 9, 7), 1, True),
    ("NHWC", (3, 20, 9, 7), 1, True),
    ("FRACTAL_NZ", (3, 70, 50), 1, True),
    ("NDC1HWC0", (2, 20, 3, 4, 5), 1, True),
    ("FRACTAL_Z", (40, 20, 3, 3), 1, False),
    ("FRACTAL_Z", (18, 5, 3, 2), 3, False),
]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("layout_of", LAYOUTS)
def test_large_tensor_in_device_layout_has_statistics(
    layout_of: tuple[str, tuple[int, ...], int, bool],
    copies: int,
    made: MadeDump,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stays as it is; what is counted are its elements, and not the padding between them."""
    name, shape, groups, can_be_cut = layout_of
    monkeypatch.setattr(entry_statistics, "MAX_CONVERTED_BYTES", 1000)
    monkeypatch.setattr(convert_module, "PIECE_BYTES", 12_000)
    directory = made.root / "20260101000000" / "3" / "Net" / "1" / "7"
    directory.mkdir(parents=True)
    host = np.random.default_rng(0).normal(size=shape).astype(np.float16)
    host.reshape(-1)[5:8] = np.nan
    device, layout = write(host, name, groups=groups)
    device[device == 0] = 9  # in the padding
    part = Tensor(
        device.tobytes(),
        DATA_TYPES["float16"],
        layout.shape,
        shape,
        FORMAT_CODES[name],
        groups if groups > 1 else 0,
    )
    (directory / "Op.of_0.5.2.1700000000000000").write_bytes(dump_data([part] * copies))

    (summary,) = ingest_directly(made.root, store)

    assert (summary.tensors, summary.duplicates) == (copies, copies - 1)
    wanted = summarise(host.reshape(-1))
    for tensor in open_store(str(store)).tensors():
        assert tensor.read().tobytes() == host.tobytes()
        if not can_be_cut:
            assert np.isnan(tensor.statistics.count)
            continue
        for field in COUNT_FIELDS:
            assert getattr(tensor.statistics, field) == getattr(wanted, field)
        assert (tensor.statistics.min, tensor.statistics.max) == (wanted.min, wanted.max)
        assert tensor.statistics.mean == pytest.approx(wanted.mean, rel=1e-12, abs=1e-15)
        assert tensor.statistics.std == pytest.approx(wanted.std, rel=1e-12)


#: Converts and publishes what it is named, and says how much memory that took beyond its imports.
_INGEST = """
import resource, sys
from pathlib import Path
from tests.pipeline import plan_all, run
from workers.arrays.compiled import kernels
from workers.model import MIB
from workers.store.model import Grid

kernels.warm_up()
(plan,) = plan_all(Path(sys.argv[1]), sys.argv[2], Grid(shard_nbytes=32 * MIB))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if len(sys.argv) > 3:
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + int(sys.argv[3]),) * 2)
summary = run(plan)
assert summary.status == "complete", summary
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.timeout(60)
def test_tensor_of_a_gibibyte_goes_through_a_process_of_a_fraction_of_it(made: MadeDump, store: Path) -> None:
    """A worker with a limit must not be killed by the size of what it is given.

    The process may not map more than 160 MiB beside what it has mapped when it begins.
    """
    path = made.add(npy_header("<f4", (256 * MIB,)), tensor_name())
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) + 1024 * MIB)  # zeros, and no disk for them
        tail = np.random.default_rng(0).random(24 * MIB, np.float32)  # shards that nothing makes smaller
        tail[-1] = 1023
        file.seek(-tail.nbytes, os.SEEK_END)
        file.write(tail.tobytes())

    done = subprocess.run(
        [sys.executable, "-c", _INGEST, str(made.root), str(store), str(160 * MIB)],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[4],
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 160 * MIB
    (tensor,) = open_store(str(store)).tensors()
    assert tensor.shape == (256 * MIB,)
    assert tensor.statistics.max == 1023
    assert tensor.statistics.zero_count == 256 * MIB - np.count_nonzero(tail)
    assert tensor.edges(2)[1].tolist() == tail[-2:].tolist()
