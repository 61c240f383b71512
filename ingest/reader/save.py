"""Write tensors as files: single ones as npy, those put together from the pieces of ranks as safetensors.

Pieces are read a few MiB at a time and written as they come, whatever the size of a tensor. A file appears
under its name when it is complete; of safetensors, there is one for each step.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, Unpack, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from ingest.reader.catalog import Damage
from ingest.reader.choice import Choice
from ingest.reader.dump_store import DumpStore
from ingest.reader.export import TargetDirectory
from ingest.reader.output_file import output_file, translated
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from ingest.reader.tensor_filter import FilterFields
from ingest.reader.unsharded import UnshardedTensor, unshard
from workers.dump.formats.safetensors import CODES, TensorInFile, encode_header
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey, tensors_of

#: What `dtype.isbuiltin` is for types such as those of `ml_dtypes`; for those of numpy it is 0 or 1.
_OF_ANOTHER_PACKAGE = 2


def save_npy(values: Tensor | UnshardedTensor | Any, path: str | Path) -> str:
    """Write a tensor, or an array, to an npy file, and replace an older one.

    A tensor is written piece by piece in its own order, whatever its size. Types that numpy does not have are
    widened without loss: bfloat16 and smaller floating-point types to float32, packed integers to int8 or
    uint8.

    Returns:
        The type to which the elements were widened; "" if they were not.

    Raises:
        UsageError: the file cannot be written; or only statistics of the tensor were dumped.
        DumpIngestError: the disk is full, or reports an error.
        DamagedStore: chunks are missing or damaged.
    """
    if isinstance(values, Tensor) and values.is_plain and all(values.shape) and values.shape:
        return _save_pieces(values.pieces(), values.shape, Path(path), fortran=values.is_fortran_order)
    if isinstance(values, UnshardedTensor) and all(values.shape) and values.shape:
        return _save_pieces(values.parts(), values.shape, Path(path))
    array = np.asarray(values)
    target = file_type(array.dtype)
    with output_file(Path(path)) as file:
        np.save(cast(BinaryIO, file), array.astype(target, copy=False), allow_pickle=False)
    return "" if target == array.dtype else str(target)


def _save_pieces(
    pieces: Iterator[npt.NDArray[Any]], shape: tuple[int, ...], path: Path, *, fortran: bool = False
) -> str:
    """Write the elements one after the other, without a memory map: a full disk would kill the process."""
    first = next(pieces)
    target = file_type(first.dtype)
    header = {"descr": dtype_to_descr(target), "fortran_order": fortran, "shape": shape}
    with output_file(path) as file:
        write_array_header_1_0(cast(BinaryIO, file), header)
        for piece in chain([first], pieces):
            file.write(piece.astype(target, copy=False).tobytes())
    return "" if target == first.dtype else str(target)


def file_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which numpy alone can read elements of a type: the type itself, or a wider one."""
    if dtype.isbuiltin != _OF_ANOTHER_PACKAGE:
        return dtype
    if "float" in dtype.name:
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if "uint" in dtype.name else np.int8)


_UNKNOWN = np.dtype(np.void)

#: How ranks hold the tensor of a name; "" to go by the dump, or by equal bytes.
PlacementOf = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class ExportedWhole:
    """A whole tensor that was written, or the reason why it was not."""

    step: int
    name: str
    """In the file. Tensors of one name are numbered from the second on: `name#2`, or the next free number."""
    path: Path
    ranks: tuple[int, ...]
    """The ranks that have a piece."""
    placement: str
    """How they hold it; "" if that is open."""
    why: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    problem: str = ""
    is_damaged: bool = field(default=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "is_damaged"}
        return row | {"path": str(self.path), "ranks": list(self.ranks), "shape": list(self.shape)}


def export_unsharded(
    store: DumpStore,
    directory: str | Path,
    step: Choice = None,
    *,
    placement: str | PlacementOf = "",
    overwrite: bool = False,
    damages: list[Damage] | None = None,
    **conditions: Unpack[FilterFields],
) -> list[ExportedWhole]:
    """Write the whole tensors of each step to `DIRECTORY/step{N}.safetensors`.

    Elements are of the type of the pieces, and float64 for sums; types that the format does not have are
    widened as `save_npy` does.

    Memory: the indexes of one step of all ranks, and a few MiB.

    Args:
        store: the store.
        directory: where the files are written; created if it is missing.
        step: one step, or several; default: all.
        placement: how the ranks hold these tensors, such as `shard 0`, or a function that returns it for a
            name; "" to go by what the dump tells, or by equal bytes.
        overwrite: whether to replace existing files.
        damages: receives the steps whose commit is damaged; see `DumpStore.tensors`.
        conditions: what a tensor fulfils on any rank: `name`, `role="weight"`, ...; see `FilterFields`.

    Returns:
        Every chosen tensor. One with a `problem` was not written: its layout is open, the shapes of its
        pieces do not allow `placement`, it was removed or damaged.

    Raises:
        UsageError: a file exists already or cannot be written; a step or condition fits nothing.
        DamagedStore: the index of a step is missing or damaged.
    """
    root = Path(directory)
    placement_of = placement if callable(placement) else lambda _: placement
    chosen = _chosen(store, step, conditions, damages)
    exported: list[ExportedWhole] = []
    with TargetDirectory(root) as target:
        for number in chosen:
            if target.check((), _file_name(number)) and not overwrite:
                raise UsageError(
                    f"{root / _file_name(number)} exists",
                    hint="Export into an empty directory, or pass --overwrite.",
                )
        for number, step_tensors in chosen.items():
            wholes = list(_put_together(store, *step_tensors, placement_of))
            exported += _write(target, root / _file_name(number), number, wholes)
    return exported


def _file_name(step: int) -> str:
    return f"step{step}.safetensors"


#: One step of all ranks, by rank, and which of its tensors are exported; None for all.
_StepTensors: TypeAlias = tuple[list[Step], set[TensorKey] | None]


def _rows_by_step(tensors: Iterable[Tensor]) -> dict[StepKey, set[int]]:
    rows: dict[StepKey, set[int]] = {}
    for tensor in tensors:
        rows.setdefault(StepKey(tensor.rank, tensor.step), set()).add(tensor.row)
    return rows


def _chosen(
    store: DumpStore, step: Choice, conditions: FilterFields, damages: list[Damage] | None
) -> dict[int, _StepTensors]:
    rows = _rows_by_step(store.tensors(step=step, **conditions, damages=damages)) if conditions else {}
    chosen: dict[int, _StepTensors] = {}
    for opened in store.select(None, step, damages=[] if conditions else damages):
        if opened.key.step is None:
            continue
        steps, wanted = chosen.setdefault(opened.key.step, ([], set() if conditions else None))
        steps.append(opened)
        if wanted is not None and (own := rows.get(opened.key)):
            places, keys = tensors_of(opened.tables)
            wanted.update(key for row, key in zip(places.tolist(), keys, strict=True) if row in own)
            opened.forget_tables()
    return {number: own for number, own in chosen.items() if own[1] != set()}


@dataclass(frozen=True, slots=True)
class _Whole:
    """A tensor to write, or why it cannot be."""

    name: str
    pieces: Sequence[Tensor]
    whole: UnshardedTensor | None = None
    dtype: np.dtype[Any] = _UNKNOWN
    problem: str = ""
    is_damaged: bool = False

    @property
    def nbytes(self) -> int:
        return 0 if self.whole is None else math.prod(self.whole.shape) * self.dtype.itemsize

    def failed(self, exc: UsageError | DamagedStore) -> _Whole:
        """Return it as one that is not written."""
        problem = exc.message.removeprefix(f"{self.pieces[0].name}: ")
        return replace(self, whole=None, problem=problem, is_damaged=isinstance(exc, DamagedStore))


def _put_together(
    store: DumpStore, steps: Sequence[Step], wanted: set[TensorKey] | None, placement_of: PlacementOf
) -> Iterator[_Whole]:
    places = store.coordinates([opened.key.rank for opened in steps])
    pieces: dict[TensorKey, list[Tensor]] = {}
    for opened in steps:
        rows, known = tensors_of(opened.tables)
        for row, key in zip(rows.tolist(), known, strict=True):
            if wanted is None or key in wanted:
                pieces.setdefault(key, []).append(Tensor(opened, row))
    for (key, own), name in zip(pieces.items(), _names_in_file(pieces), strict=True):
        candidate = _Whole(name, own)
        try:
            whole = unshard(own, [places.get(tensor.rank, {}) for tensor in own], placement_of(key.name))
            yield replace(candidate, whole=whole, dtype=_type_in_file(whole))
        except (UsageError, DamagedStore) as exc:
            yield candidate.failed(exc)


def _names_in_file(keys: Collection[TensorKey]) -> Iterator[str]:
    """Yield a name for each tensor; no two are the same.

    A number that is added to a name must not make it that of a slot that was dumped several times.
    """
    taken = {key.name for key in keys}
    numbers: dict[str, Iterator[int]] = {}
    for key in keys:
        name = key.name
        if name not in numbers:
            numbers[name] = count(2)
        else:
            numbered = (f"{name}#{number}" for number in numbers[name])
            name = next(candidate for candidate in numbered if candidate not in taken)
        yield name


def _type_in_file(whole: UnshardedTensor) -> np.dtype[Any]:
    """Return the type in which the elements are written. Reads one of them.

    Raises:
        UsageError: the format does not have it, or the elements are not in the store.
        DamagedStore: the first chunk is missing or damaged.
    """
    own = whole.elements(0, min(1, math.prod(whole.shape))).dtype
    target = own if own.name in CODES else file_type(own)
    if target.name not in CODES:
        raise UsageError(f"{whole.name}: safetensors does not have {own.name}")
    return target.newbyteorder("<")


def _write(target: TargetDirectory, path: Path, step: int, wholes: list[_Whole]) -> Iterator[ExportedWhole]:
    while not _write_file(target, path, wholes):
        pass  # a tensor that cannot be read is marked now: the next attempt leaves it out
    for written in wholes:
        first = written.pieces[0]
        whole = written.whole
        yield ExportedWhole(
            step,
            written.name,
            path,
            tuple(piece.rank for piece in written.pieces),
            str(whole.placement) if whole is not None else "",
            whole.why if whole is not None else "",
            written.dtype.name if whole is not None else first.dtype,
            whole.shape if whole is not None else (),
            written.nbytes,
            written.problem,
            written.is_damaged,
        )


def _write_file(target: TargetDirectory, path: Path, wholes: list[_Whole]) -> bool:
    """Write the file of a step; return whether it is complete. If not, the tensor that failed is marked."""
    # The largest elements first, so that all are aligned.
    order = sorted(
        (place for place, written in enumerate(wholes) if written.whole is not None),
        key=lambda place: -wholes[place].dtype.itemsize,
    )
    if not order:
        return True
    temporary = f".{uuid.uuid4().hex}.tmp"
    try:
        with translated(path), target.open((), temporary) as file:
            file.write(_header([wholes[place] for place in order]))
            for place in order:
                try:
                    file.writelines(_bytes_of(wholes[place]))
                except (UsageError, DamagedStore) as exc:
                    wholes[place] = wholes[place].failed(exc)
                    return False
        target.rename((), temporary, path.name)
    finally:
        target.remove((), temporary)
    return True


def _header(wholes: Sequence[_Whole]) -> bytes:
    return encode_header(
        (
            TensorInFile(
                written.name,
                written.dtype.name,
                written.whole.shape if written.whole is not None else (),
                written.nbytes,
            )
            for written in wholes
        ),
        {"format": "pt"},
    )


def _bytes_of(written: _Whole) -> Iterator[memoryview]:
    for part in written.whole.parts() if written.whole is not None else ():
        yield np.ascontiguousarray(part.astype(written.dtype, copy=False)).view(np.uint8).data
