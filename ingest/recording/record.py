"""`ingest.record`: check what the caller asks for, and make a recorder of it."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from ingest.layouts.recorder import DIRECTORY
from ingest.recording.black_box import BlackBox
from ingest.recording.recorder import Advance, Choice, Compiled, Recorder, What, WhenFull
from ingest.recording.snapshots import Torch, TorchModule, import_torch
from ingest.units import parse_size
from workers.errors import UsageError
from workers.host.resources import machine_nbytes
from workers.model import MIB

_AXES = ("tp", "pp", "dp", "cp", "ep", "sp", "dp_replicate", "dp_shard")
_MESH_HINT = (
    "A mesh is a torch DeviceMesh with names, or the place and size by axis: {'tp': (0, 2), 'dp': (3, 4)}."
)


class AxisPlace(NamedTuple):
    """The place of this process along one axis."""

    rank: int
    size: int


def rank_of(torch: Torch) -> int:
    """Return the rank of this process: of `torch.distributed`, else of `RANK`, else 0."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def coordinates_of(torch: Torch, model: TorchModule, mesh: Any = None) -> dict[str, AxisPlace]:
    """Return the place of this process along each axis of more than one rank.

    From the mesh that the caller names; else from the meshes of DTensors among the parameters, and from
    DistributedDataParallel, whose processes are `dp`.

    Raises:
        UsageError: the mesh is not one, or has an axis of another name.
    """
    places = _of_model(torch, model) if mesh is None else _of_named_mesh(mesh)
    return {axis: place for axis, place in places.items() if axis in _AXES and place.size > 1}


def _of_named_mesh(mesh: Any) -> dict[str, AxisPlace]:
    places = _told(mesh) if isinstance(mesh, Mapping) else _of_mesh(mesh)
    if not places and not isinstance(mesh, Mapping):
        raise UsageError("mesh: has no names of axes, or this rank is not in it", hint=_MESH_HINT)
    if unknown := [axis for axis in places if axis not in _AXES]:
        raise UsageError(f"mesh: no axis {unknown[0]!r}", hint=f"Axes: {', '.join(_AXES)}.")
    return places


def _told(mesh: Mapping[Any, Any]) -> dict[str, AxisPlace]:
    places = {}
    for axis, place in mesh.items():
        match place:
            case (int(rank), int(size)) if 0 <= rank < size:
                places[str(axis)] = AxisPlace(rank, size)
            case _:
                raise UsageError(f"mesh: {axis}={place!r} is not a place and a size", hint=_MESH_HINT)
    return places


def _of_model(torch: Torch, model: TorchModule) -> dict[str, AxisPlace]:
    places: dict[str, AxisPlace] = {}
    for parameter in model.parameters():
        if (mesh := getattr(parameter, "device_mesh", None)) is not None:
            places = _of_mesh(mesh) | places
    group = getattr(model, "process_group", None)
    if type(model).__name__ == "DistributedDataParallel" and group is not None:
        distributed = torch.distributed
        places.setdefault(
            "dp", AxisPlace(int(distributed.get_rank(group)), int(distributed.get_world_size(group)))
        )
    return places


def _of_mesh(mesh: Any) -> dict[str, AxisPlace]:
    names = getattr(mesh, "mesh_dim_names", None)
    ranks = mesh.get_coordinate() if names else None
    if not names or ranks is None:
        return {}
    places = enumerate(zip(names, ranks, strict=True))
    return {name: AxisPlace(int(rank), int(mesh.size(number))) for number, (name, rank) in places}


_OF = ("inputs", "outputs", "gradients", "parameters", "functions")
_DEFAULT_OF = _OF[:-1]


def _check_model(torch: Torch, model: TorchModule) -> None:
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"record: {type(model).__name__} is not a torch.nn.Module", hint="Pass the model.")
    if isinstance(model, torch.jit.ScriptModule):
        hint = "Record the module from which it was made."
        raise UsageError(f"record: {type(model).__name__} of torch.jit cannot have hooks", hint=hint)


def record(
    model: TorchModule,
    directory: str | os.PathLike[str],
    *,
    steps: Iterable[int] | None = None,
    every: int = 1,
    what: What = "stats",
    of: Collection[str] = _DEFAULT_OF,
    modules: str = "*",
    advance: Advance = "forward",
    first_step: int = 0,
    max_nbytes: int | None = None,
    queue_nbytes: int = 1024 * MIB,
    when_full: WhenFull | None = None,
    compiled: Compiled = "boundary",
    mesh: Any = None,
    overhead: float | None = None,
    black_box: int | None = None,
    keep: int | str | None = None,
    ring: str | os.PathLike[str] | None = None,
    after: int = 2,
    incidents: int = 8,
    budget: int | str | None = None,
) -> Recorder:
    """Record a PyTorch model as a dump, while the returned context manager is used.

        with ingest.record(model, "run-dump", steps=range(8, 12)):
            for batch in loader:
                ...

    In the steps that are recorded, hooks see the inputs and outputs of modules, the gradients of outputs, the
    parameters and buffers when the first module is called, and the gradients of parameters after the
    backward pass and its reductions. A thread writes them below `directory/recorded/`, which `dump-ingest
    ingest` and `watch` read. Between those steps, nothing is hooked but the model itself. Ranks of
    `torch.distributed` write side by side into one directory.

    Memory: at most `queue_nbytes` of host memory for copies of elements, and 64 MiB for statistics; on an
    accelerator, a clone of each tensor until it has been copied.

    Args:
        model: a `torch.nn.Module`, also one in DistributedDataParallel, FSDP or `torch.compile`.
        directory: of the dump. All ranks name the same one.
        steps: the steps to record; all if None.
        every: only steps whose number is a multiple of it.
        what: `stats` for statistics only, `tensors` for the elements, too.
        of: `inputs`, `outputs`, `gradients`, `parameters`; and `functions` for the calls of PyTorch's
            functions in the Python code of the model, each with its line.
        modules: a pattern for the names of modules, as for file names: `layers.0.*`.
        advance: what begins a step: `forward`, each call of the model; `optimizer`, the end of a step of an
            optimizer of its parameters; `manual`, `Recorder.advance`.
        first_step: the number of the first step, for a job that goes on at a checkpoint.
        max_nbytes: with `tensors`, larger tensors have statistics only; in bytes. Default: no limit.
        queue_nbytes: the most that waits to be written, in bytes. A larger tensor waits for an empty queue.
        when_full: `wait`, which delays the training; or `leave out`: then the statistics are recorded without
            the elements, and the dump says how many. By default `wait`, but of a black box `leave out`.
        compiled: how modules that `torch.compile` has compiled are seen: only from outside (`boundary`), or
            run uncompiled in the steps that are recorded (`eager`).
        mesh: the place of this process in the mesh of the job: a DeviceMesh with names, or the place and size
            by axis: `{"tp": (0, 2), "dp": (3, 4)}`. By default that of DTensors and DistributedDataParallel.
        overhead: the share of a step that the recorder may cost, such as 0.03: after the first step, it looks
            at as many modules in a step as that pays for, in turn. By default it looks at all.
        black_box: how many steps before and with an incident have their elements saved. Statistics of all
            steps are recorded, and elements of the last steps are held in a ring until something happens: a
            NaN or infinity that was not there before, a spike of the loss or of the gradients, an exception,
            SIGTERM, `Recorder.trigger`, a file `black-box/trigger` in the directory, or any of these on
            another rank. None for no black box.
        keep: the most memory of this process that the ring takes, in bytes or as `64GiB`. By default a
            quarter of that of the machine, over the processes of `LOCAL_WORLD_SIZE`.
        ring: a directory on this host for the ring, such as one in `/dev/shm` or on a local disk: what it
            holds outlives the process. By default the ring is in memory of the process.
        after: how many steps after an incident are saved, too.
        incidents: how many incidents of the run may be saved.
        budget: the most that this process saves, in bytes or as `64GiB`. By default `keep` for each incident.

    Returns:
        The recorder, to be used as a context manager.

    Raises:
        UsageError: PyTorch is not installed, or an argument cannot be used; when the context begins, also if
            the directory cannot be written, or has one of the steps already.
    """
    torch = import_torch()
    _check_model(torch, model)
    _check("what", what, get_args(What))
    _check("advance", advance, get_args(Advance))
    _check("when_full", when_full or "wait", get_args(WhenFull))
    _check("compiled", compiled, get_args(Compiled))
    for wanted in (of,) if isinstance(of, str) else of:
        _check("of", wanted, _OF)
    if not of:
        raise UsageError("record: of is empty", hint=f"Any of: {', '.join(_OF)}.")
    if not isinstance(modules, str):
        raise UsageError(
            f"record: modules={modules!r} is not a pattern", hint="One text, such as 'layers.0.*'."
        )
    choice = Choice(
        steps=steps if steps is None or isinstance(steps, range) else _numbers(steps),
        every=_whole("every", every, 1),
        what=what,
        of=frozenset((of,) if isinstance(of, str) else of),
        modules=modules,
        advance=advance,
        first_step=_whole("first_step", first_step, 0),
        max_nbytes=math.inf if max_nbytes is None else _whole("max_nbytes", max_nbytes, 0),
        queue_nbytes=_whole("queue_nbytes", queue_nbytes, 1),
        when_full=when_full or ("wait" if black_box is None else "leave out"),
        compiled=compiled,
        overhead=_share(overhead, of),
        black_box=_black_box(
            black_box,
            what=what,
            keep=keep,
            ring=ring,
            after=after,
            incidents=incidents,
            budget=budget,
        ),
    )
    rank = rank_of(torch)
    places = coordinates_of(torch, model, mesh)
    try:
        root = Path(directory)
    except TypeError as exc:
        raise UsageError(f"record: {directory!r} is not a directory", hint="Name one, as text.") from exc
    name = "".join(
        (f"rank_{rank}", *(f".{axis}_rank_{number}_of_{size}" for axis, (number, size) in places.items()))
    )
    return Recorder(torch, model, root / DIRECTORY / name, rank, choice)


def _share(overhead: float | None, of: Collection[str]) -> float | None:
    if overhead is not None and not 0 < overhead < 1:
        raise UsageError(f"record: overhead={overhead!r} is not a share", hint="Pass 0.03 for 3 %.")
    if overhead is not None and "functions" in of:
        raise UsageError("record: functions cannot be looked at in turn", hint="Pass overhead without them.")
    return overhead


def _black_box(
    steps: int | None,
    *,
    what: What,
    keep: int | str | None,
    ring: str | os.PathLike[str] | None,
    after: int,
    incidents: int,
    budget: int | str | None,
) -> BlackBox | None:
    if steps is None:
        if (keep, ring, budget) != (None, None, None):
            raise UsageError(
                "record: keep, ring and budget are those of a black box", hint="Pass black_box=8, too."
            )
        return None
    if what != "stats":
        raise UsageError(
            f"record: what={what!r} records elements of every step, and a black box those of incidents",
            hint="Pass either black_box or what.",
        )
    keep_nbytes = (
        machine_nbytes() // 4 // max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
        if keep is None
        else _nbytes("keep", keep)
    )
    incidents = _whole("incidents", incidents, 0)
    return BlackBox(
        steps=_whole("black_box", steps, 1),
        after=_whole("after", after, 0),
        keep_nbytes=keep_nbytes,
        incidents=incidents,
        budget_nbytes=incidents * keep_nbytes if budget is None else _nbytes("budget", budget),
        ring=None if ring is None else Path(ring),
    )


def _nbytes(name: str, value: int | str) -> int:
    try:
        return _whole(name, parse_size(value) if isinstance(value, str) else value, 1)
    except ValueError as exc:
        raise UsageError(f"record: {name}: {exc}", hint="Pass bytes, or a text such as '64GiB'.") from exc


def _numbers(steps: Any) -> frozenset[int]:
    hint = "Numbers of steps: range(8, 12), [0, 500]. For all, leave it out."
    if isinstance(steps, str) or not isinstance(steps, Iterable):
        raise UsageError(f"record: steps={steps!r} is not a list of steps", hint=hint)
    try:
        return frozenset(map(operator.index, steps))  # also those of numpy and torch
    except TypeError as exc:
        raise UsageError(f"record: steps: {exc}", hint=hint) from exc


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError as exc:
        hint = f"Pass {least} or more."
        raise UsageError(f"record: {name}={value!r} is not a whole number", hint=hint) from exc
    if number < least:
        raise UsageError(f"record: {name}={value} is less than {least}", hint=f"Pass {least} or more.")
    return number


def _check(name: str, value: str, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise UsageError(f"record: {name}={value!r} is not known", hint=f"One of: {', '.join(allowed)}.")
