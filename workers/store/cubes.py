"""The consolidated view: which arrays it has, and how they are cut.

    consolidated/
        zarr.json                   written last; the metadata of every array, and which steps are in them
        step, rank, tensor          the coordinates; tensor is a name that occurs once
        name, net, graph, op_type, op_name, io, slot, occurrence, copy     (tensor)
        fingerprint, status, ...    (step, rank): which generation of a step the cubes hold
        nan_count, min, ..., row    (step, rank, tensor)
        digest                      (step, rank, tensor, digest_byte)

The axes grow at their ends only, so nothing that was written changes its place: steps and ranks stand in the
order in which they were taken in, which is ascending unless one came late.

Most cubes are cut so that a step has objects of its own, which are never written again: to append a step
costs the same at step 10 and step 1000. The three counts of what is not finite are cut into blocks of several
steps, for they are what is asked over all steps, and nearly all of it is zero: sixteen steps of 320,000
tensors are a few hundred KiB. So the last block of these is written again with each step, and so is
the last one of what has one value for each step and rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.statistics import COUNT_FIELDS, FIELDS
from workers.errors import DamagedStore
from workers.model import MIB
from workers.store import metadata
from workers.store.blocks import TensorAxis, TensorKey
from workers.store.nd_arrays import ArrayLayout
from workers.store.objects import ObjectStore

GROUP = "consolidated"
REBUILD_HINT = "`dump-ingest consolidate --rebuild` makes the view anew; nothing is lost by it."
#: Raised when an older version could not read the view. It is made anew then: it holds nothing of its own.
CUBES_VERSION = 1

#: The counts that are cut into blocks of steps.
ANOMALY_FIELDS = ("nan_count", "pos_inf_count", "neg_inf_count")
#: Text and numbers of `TensorKey`, in its order.
KEY_FIELDS = TensorKey._fields
#: Totals of a step of a rank, from its commit.
TOTALS = ("tensors", "statistics_only", "quarantined", "overflows", "disagreements", "anomalous_tensors")

_MAX_RANKS = 256
_MAX_TENSORS = 8192
_INNER_TENSORS = 512
_MAX_STEPS = 16
_ANOMALY_NBYTES = 64 * MIB
_STEPS = 1024
_STEPS_OF_TABLES = 128
_KEYS = 16384
#: No axis is longer: what the metadata says is not to be believed without a bound.
_MAX_LENGTH = 1 << 24
#: No table of (step, rank) is larger: it takes half a GiB.
_MAX_TABLE = 1 << 26


@dataclass(frozen=True, slots=True)
class CubeGrid:
    """How the cubes are cut: the lengths of a chunk along each axis. Fixed when the view is made."""

    ranks: int
    tensors: int
    inner_tensors: int
    steps: int
    """Of the counts of what is not finite; other cubes have one step in a chunk."""

    @classmethod
    def for_size(cls, ranks: int, tensors: int) -> CubeGrid:
        """Return the grid for a run that begins with this many ranks and tensors; either may grow."""
        wide = min(_power_of_two(max(ranks, 1)), _MAX_RANKS)
        # A little room: other steps may have other tensors.
        long = min(_power_of_two(max(tensors * 9 // 8, 64)), _MAX_TENSORS)
        fitting = _ANOMALY_NBYTES // (wide * long * 8)
        return cls(wide, long, min(long, _INNER_TENSORS), max(1, min(fitting, _MAX_STEPS)))

    def to_dict(self) -> dict[str, int]:
        """Return the lengths, for the attributes of the view."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CubeState:
    """What the metadata of the view says of it: how long its axes are, and what is under way."""

    epoch: str
    """Which making of the view this is."""
    revision: int
    """How often its metadata was written."""
    rewrites: int
    """How often steps that were in it were begun to be written again."""
    rewriting: tuple[int, ...]
    """Places of the steps that are being written again: what their cubes hold is not to be trusted."""
    grid: CubeGrid
    steps: int = 0
    ranks: int = 0
    tensors: int = 0
    consolidated_at: str = ""
    """When its metadata was written, ISO 8601."""

    def document(self) -> metadata.Document:
        """Return the metadata of the group, with that of all arrays in it."""
        record = {**asdict(self), "version": CUBES_VERSION, "rewriting": list(self.rewriting)}
        documents = Cubes(self.grid).documents(self.steps, self.ranks, self.tensors)
        document = metadata.leaf(record, documents)
        # By this, xarray takes them for coordinates (CF conventions, section 5).
        document["attributes"]["coordinates"] = " ".join((*KEY_FIELDS, "name"))
        return document


def parse_state(data: bytes | None) -> CubeState | None:
    """Read the metadata of the view; None where there is none, or another version's.

    Raises:
        DamagedStore: it is damaged.
    """
    if data is None:
        return None
    try:
        record = dict(json.loads(data)["attributes"][metadata.ATTRIBUTE])
        if record.pop("version") != CUBES_VERSION:
            return None
        grid = CubeGrid(**record.pop("grid"))
        state = CubeState(grid=grid, **{**record, "rewriting": tuple(record["rewriting"])})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise DamagedStore(f"{GROUP}/zarr.json: damaged ({exc!r})", hint=REBUILD_HINT) from exc
    lengths = (*grid.to_dict().values(), state.steps, state.ranks, state.tensors)
    numbers = (*lengths, *state.rewriting, state.revision, state.rewrites)
    if (
        # Booleans are no lengths, either.
        any(type(number) is not int for number in numbers)
        or not all(type(text) is str for text in (state.epoch, state.consolidated_at))
        or min(grid.to_dict().values()) < 1
        or min(numbers) < 0
        or grid.ranks * grid.tensors * grid.steps > _MAX_RANKS * _MAX_TENSORS * _MAX_STEPS
        or grid.tensors % grid.inner_tensors
        or max(lengths) > _MAX_LENGTH
        or state.steps * state.ranks > _MAX_TABLE
        or max(state.rewriting, default=-1) >= state.steps
    ):
        raise DamagedStore(f"{GROUP}/zarr.json: impossible lengths", hint=REBUILD_HINT)
    return state


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


@dataclass(frozen=True)
class Cubes:
    """The layouts of all arrays of the view, by group."""

    grid: CubeGrid
    per_step: dict[str, ArrayLayout] = field(init=False)
    """Cubes with objects of their own for each step."""
    anomalies: dict[str, ArrayLayout] = field(init=False)
    tables: dict[str, ArrayLayout] = field(init=False)
    """(step, rank)."""
    keys: dict[str, ArrayLayout] = field(init=False)
    """(tensor): the fields of `TensorKey`, `name`, and `tensor` itself."""
    steps: ArrayLayout = field(init=False)
    ranks: ArrayLayout = field(init=False)

    def __post_init__(self) -> None:
        grid, cube = self.grid, ("step", "rank", "tensor")
        one_step = (1, grid.ranks, grid.tensors)
        per_step: dict[str, ArrayLayout] = {}
        for name in FIELDS:
            if name not in ANOMALY_FIELDS:
                kind, fill = ("int64", -1) if name in COUNT_FIELDS else ("float64", np.nan)
                per_step[name] = ArrayLayout(
                    name, kind, cube, one_step, fill, grid.inner_tensors, 2, _missing(fill)
                )
        per_step["row"] = ArrayLayout("row", "int32", cube, one_step, -1, grid.inner_tensors, 2)
        per_step["digest"] = ArrayLayout(
            "digest",
            "uint8",
            (*cube, "digest_byte"),
            (*one_step, DIGEST_BYTES),
            0,
            grid.inner_tensors,
            2,
        )
        block = (grid.steps, grid.ranks, grid.tensors)
        tables = {
            name: ArrayLayout(name, "string", ("step", "rank"), (_STEPS_OF_TABLES, grid.ranks), "")
            for name in ("fingerprint", "status")
        }
        for name in TOTALS:
            tables[name] = ArrayLayout(
                name, "int64", ("step", "rank"), (_STEPS_OF_TABLES, grid.ranks), -1, 0, 0, _missing(-1)
            )
        keys = {
            name: ArrayLayout(
                name,
                "int64" if name in ("slot", "occurrence", "copy") else "string",
                ("tensor",),
                (_KEYS,),
                -1 if name in ("slot", "occurrence", "copy") else "",
            )
            for name in (*KEY_FIELDS, "name", "tensor")
        }
        # A frozen value: what follows from the grid is set once, here.
        for name, value in (
            ("per_step", per_step),
            (
                "anomalies",
                {n: ArrayLayout(n, "int64", cube, block, -1, 0, 0, _missing(-1)) for n in ANOMALY_FIELDS},
            ),
            ("tables", tables),
            ("keys", keys),
            ("steps", ArrayLayout("step", "int64", ("step",), (_STEPS,), -1)),
            ("ranks", ArrayLayout("rank", "int64", ("rank",), (_STEPS,), -1)),
        ):
            object.__setattr__(self, name, value)

    @property
    def shared(self) -> tuple[ArrayLayout, ...]:
        """What is cut into blocks of several steps, (step, rank) and (step, rank, tensor)."""
        return (*self.tables.values(), *self.anomalies.values())

    def documents(self, steps: int, ranks: int, tensors: int) -> dict[str, metadata.Document]:
        """Return the Zarr metadata of every array, by its path in the view."""
        of_tensors = {"digest": (steps, ranks, tensors, DIGEST_BYTES)}
        found = {
            name: layout.document(of_tensors.get(name, (steps, ranks, tensors)))
            for name, layout in {**self.per_step, **self.anomalies}.items()
        }
        found |= {name: layout.document((steps, ranks)) for name, layout in self.tables.items()}
        found |= {name: layout.document((tensors,)) for name, layout in self.keys.items()}
        return {
            **found,
            "step": self.steps.document((steps,)),
            "rank": self.ranks.document((ranks,)),
        }


def _missing(fill: Any) -> dict[str, Any]:
    # So that xarray shows what a rank does not have as missing, and not as a count of -1.
    return {"_FillValue": fill} if isinstance(fill, int) else {}


def unique_names(keys: Sequence[TensorKey], taken: set[str]) -> list[str]:
    """Return a name for each of `keys` that occurs once: its own where that is free, else with its graph.

    `taken` are the names given before; it takes the new ones.
    """
    names = []
    for key in keys:
        copy = f"~{key.copy}" if key.copy else ""
        name = f"{key.name}{copy}"
        for candidate in (name, f"{key.graph}/{name}", f"{key.net}/{key.graph}/{name}"):
            if candidate not in taken:
                name = candidate
                break
        else:
            name = f"{key.net}/{key.graph}/{name}~{len(taken)}"
        taken.add(name)
        names.append(name)
    return names


def read_axis(objects: ObjectStore, cubes: Cubes, width: int) -> TensorAxis:
    """Read the first `width` tensors of the axis.

    Raises:
        DamagedStore: they are missing or damaged.
    """
    columns = []
    for name in KEY_FIELDS:
        layout = cubes.keys[name]
        keys = {index: f"{GROUP}/{key}" for index, key in layout.keys((width,)).items()}
        found = objects.get_many(list(keys.values()))
        parts = []
        for key in keys.values():
            if key not in found:
                raise DamagedStore(f"{key}: missing", hint=REBUILD_HINT)
            parts.append(layout.decode(found[key], key))
        columns.append(np.concatenate(parts)[:width].tolist() if parts else [])
    return TensorAxis(TensorKey(*column) for column in zip(*columns, strict=True))
