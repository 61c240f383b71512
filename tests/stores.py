"""Dumps, real ones of `tests/data` and made-up ones, and the stores that they become within this process."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import ingest
from ingest.api import DumpStore, open_store
from ingest.layouts.base import Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from workers.arrays.marginals import MarginalScope
from workers.model import StepKey
from workers.rules.values import RuleSet
from workers.store.model import CommitSummary, Grid, Origin
from workers.store.opening import resolve
from workers.tasks.convert import convert
from workers.tasks.model import StepPlan
from workers.tasks.publish import publish

# Unpack the real dumps in `tests/data`, whose README describes each of them.


DATA = Path(__file__).parent / "data"

NAMES = (
    "cann-bin-synthetic",
    "dtypes-1rank",
    "inf-explode-1rank",
    "lenet-1rank",
    "lenet-4rank",
    "longnames-1rank",
    "mindspore-2.0.0-cpu-sync",
    "mindspore-2-versions",
    "mindspore-2.7.1-cpu-sync",
    "msprobe-26.2.0-mindspore-cpu",
    "msprobe-26.2.0-pytorch-cpu",
    "nan-log-2rank",
    "nan-log-2rank-next",
    "nan-mask-1rank",
    "nan-sqrt-2rank",
    "synthetic-text",
    "tinybert-2rank",
)


def unpack(name: str, into: Path) -> Path:
    """Unpack a dump below `into` and return its directory, `into / name`."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        # Python 3.11.2 (Debian 12) does not have filters; these archives are our own and safe.
        filters: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(into, **filters)  # noqa: S202
    return into / name


class DumpLibrary(Mapping[str, Path]):
    """The dumps by name, each unpacked below `root` on first access and made read-only."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getitem__(self, name: str) -> Path:
        if name not in NAMES:
            raise KeyError(name)
        path = self._root / name
        if not path.exists():
            unpack(name, self._root)
            for below in path.rglob("*"):
                below.chmod(0o555 if below.is_dir() else 0o444)
            path.chmod(0o555)
        return path

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


# Make dump files: npy files with any content, named as MindSpore names them.


_times = count(1_795_220_037_870_000)


def npy_header(descr: object, shape: tuple[int, ...], *, fortran: bool = False, version: int = 1) -> bytes:
    """Return an npy header, padded as numpy pads it."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}".encode("latin-1")
    start = 10 if version == 1 else 12
    text += b" " * (-(start + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text


def npy_bytes(values: np.ndarray[Any, Any]) -> bytes:
    """Return an array as an npy file. Like MindSpore, describe bfloat16 as `<E2`."""
    descr = "<E2" if values.dtype == ml_dtypes.bfloat16 else np.lib.format.dtype_to_descr(values.dtype)
    fortran = values.flags.f_contiguous and not values.flags.c_contiguous
    return npy_header(descr, values.shape, fortran=fortran) + values.tobytes("F" if fortran else "C")


def tensor_name(
    op: str = "MatMul.net_MatMul-op0", io: str = "output", slot: int = 0, *, time: int | None = None
) -> str:
    """Return the name that MindSpore 2.4 and later give to the file of a tensor."""
    return f"{op}.0.0.{next(_times) if time is None else time}.{io}.{slot}.DefaultFormat.Float32.npy"


@dataclass(frozen=True)
class MadeDump:
    """A dump that a test fills file by file."""

    root: Path

    def directory(self, step: int | str = 0, *, rank: int = 0, net: str = "Net", graph: str = "0") -> Path:
        """Return the directory of an iteration, and create it if it is missing."""
        path = self.root / f"rank_{rank}" / net / graph / str(step)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def add(
        self,
        content: bytes | np.ndarray[Any, Any],
        name: str | None = None,
        *,
        step: int | str = 0,
        rank: int = 0,
        graph: str = "0",
    ) -> Path:
        """Write one file into an iteration and return its path; an array becomes an npy file."""
        path = self.directory(step, rank=rank, graph=graph) / (tensor_name() if name is None else name)
        path.write_bytes(content if isinstance(content, bytes) else npy_bytes(content))
        return path


# Dump made-up runs, in which operators on several ranks read and write arrays, as MindSpore does.


Values = np.ndarray[Any, Any]


@dataclass
class MadeRun:
    """Writes each input and output of an operator as a file, in the order of the clock of its rank."""

    dump: MadeDump
    clocks: dict[int, int] = field(default_factory=dict)
    """Microseconds since the epoch by rank. They may be hours apart: clocks of ranks are not comparable."""

    def op(
        self,
        name: str,
        inputs: Sequence[Values | None] = (),
        outputs: Sequence[Values | None] = (),
        *,
        rank: int = 0,
        step: int = 0,
        graph: str = "0",
    ) -> None:
        """Dump one call of an operator, named `{type}.{name}`; None stands for a tensor that is left out."""
        for io, tensors in (("input", inputs), ("output", outputs)):
            for slot, values in enumerate(tensors):
                if values is not None:
                    time = self.clocks[rank] = self.clocks.get(rank, 1_795_220_037_870_000) + 100
                    self.dump.add(
                        values, tensor_name(name, io, slot, time=time), step=step, rank=rank, graph=graph
                    )

    def parameter(self, name: str, values: Values, *, rank: int = 0, step: int = 0) -> None:
        """Dump a parameter as it is at the end of a step, or an input of the network."""
        self.op(f"Parameter.{name}", (), [values], rank=rank, step=step)


def numbers(*values: float) -> Values:
    """Return a small array of float32."""
    return np.array(values, np.float32)


# Ingest a dump within this process: scan, plan, convert, publish. Without Dask and without waiting.


#: A grid so small that a few hundred bytes already fill several chunks, shards and jobs.
SMALL_GRID = Grid(chunk_nbytes=64, shard_nbytes=256, job_nbytes=512)


def listings(dump: Path) -> dict[StepKey, Listing]:
    """Return the listing of every step of a dump."""
    return {listing.key: listing for listing in find_dump(dump).scan({}).listings}


def plan_all(
    dump: Path,
    store: Path | str,
    grid: Grid | None = None,
    rules: RuleSet | None = None,
    *,
    leave_out_tensors: str = "",
    layout: str = "",
    rank_map: Mapping[int, int] | None = None,
    sketches: bool = False,
    marginals: MarginalScope = MarginalScope.ALL,
) -> list[StepPlan]:
    """Plan every step of a dump as if it were complete."""
    tree = find_dump(dump, layout=layout, rank_map=rank_map)
    address = resolve(str(store))
    return [
        plan_step(
            inspect(tree.root, listing, tree.describe(listing)),
            Origin(listing.layout, "test-host", str(tree.root), listing.rank_from),
            address,
            grid or Grid(),
            rules,
            leave_out_tensors=leave_out_tensors,
            sketches=sketches,
            marginals=marginals,
        )
        for listing in tree.scan({}).listings
        if listing.files
    ]


def run(plan: StepPlan) -> CommitSummary:
    """Convert and publish one step."""
    return publish(plan, [convert(job) for job in plan.jobs])


def ingest_directly(
    dump: Path,
    store: Path | str,
    grid: Grid | None = None,
    rules: RuleSet | None = None,
    *,
    layout: str = "",
    rank_map: Mapping[int, int] | None = None,
    sketches: bool = False,
    marginals: MarginalScope = MarginalScope.ALL,
) -> list[CommitSummary]:
    """Ingest every step of a dump into a store, complete or not."""
    plans = plan_all(
        dump, store, grid, rules, layout=layout, rank_map=rank_map, sketches=sketches, marginals=marginals
    )
    return [run(plan) for plan in plans]


def ingest_and_open(dump: Path, store: Path | str, grid: Grid | None = None, **options: Any) -> DumpStore:
    """Ingest every step of a dump into a store, as `ingest_directly` does, and open it."""
    ingest_directly(dump, store, grid, **options)
    return open_store(store)


# A dump whose configuration asks for what a test chooses.


#: So few operators that a test may ingest them for itself.
OPERATORS = ("Log", "Neg", "Sigmoid")


def asked_dump(dumps: DumpLibrary, root: Path, steps: Iterable[int] = (2,)) -> Path:
    """Copy three operators of two ranks, with a graph and a configuration that a test may change, to `root`.

    A NaN is born in step 2 of rank 1.
    """
    whole = dumps["nan-log-2rank"] / "dump"
    for rank in (0, 1):
        for part in (".dump_metadata", "execution_order"):
            if (whole / f"rank_{rank}" / part).exists():
                shutil.copytree(whole / f"rank_{rank}" / part, root / f"rank_{rank}" / part)
        for step in steps:
            target = root / f"rank_{rank}/Mlp/0/{step}"
            target.mkdir(parents=True)
            for operator in OPERATORS:
                for path in (whole / f"rank_{rank}/Mlp/0/{step}").glob(f"{operator}.*"):
                    shutil.copy(path, target)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root


def store_of(
    dump: Path, store: Path, *, device: str = "CPU", e2e: dict[str, Any] | None = None, **changes: Any
) -> ingest.DumpStore:
    """Ingest the dump as if it had been made with another configuration."""
    metadata = dump / "rank_0/.dump_metadata"
    content = json.loads((metadata / "data_dump.json").read_text())
    content["common_dump_settings"] |= changes
    content["e2e_dump_settings"] |= e2e or {}
    (metadata / "data_dump.json").write_text(json.dumps(content))
    (metadata / "config.json").write_text(json.dumps({"device_target": device, "ms_version": "2.10.0"}))
    return ingest_and_open(dump, store)


# Runs of which MindSpore dumped statistics alone, without elements.


_HEADER = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,"
    "Avg Value,Count,Negative Zero Count,Positive Zero Count,NaN Count,Negative Inf Count,"
    "Positive Inf Count,Zero Count"
)
_TIME = 1_795_220_037_870_000


def ingest_statistics(root: Path, ranks: Sequence[Mapping[str, float]]) -> Path:
    """Ingest the largest elements of outputs, by `{type}.{name}`, of tensors of six elements or of one.

    A name that ends in `step` is that of a tensor without axes.
    """
    made = MadeDump(root / "dump")
    for rank, tensors in enumerate(ranks):
        lines = [_HEADER]
        for number, (name, largest) in enumerate(tensors.items()):
            shape, count = ("()", 1) if name.endswith("step") else ("(2, 3)", 6)
            least = largest if count == 1 else -1
            lines.append(
                f'{name.replace(".", ",", 1)},0,0,{_TIME + number},output,0,{4 * count},float32,"{shape}",'
                f"{largest},{least},{largest},{count},0,{count},0,0,0,0"
            )
        (made.directory(rank=rank) / "statistic.csv").write_text("\n".join([*lines, ""]))
    ingest_directly(made.root, root / "run.zarr")
    return root / "run.zarr"
