"""A tensor as it is at one moment: its statistics, or a copy of its elements in host memory.

On a CPU, the statistics are computed where the tensor lies, in one pass and without a copy. On an
accelerator, kernels on the current stream compute them (`device_statistics`), and a clone on the current
stream keeps the elements as they are; another stream copies either to the host. The training thread does not
wait for the accelerator; whoever reads the snapshot does.

PyTorch is an optional dependency: it is imported when something is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.layouts.recorder import RecordedPlacement
from workers.arrays.dtypes import from_name
from workers.arrays.histogram import NO_BINS
from workers.arrays.statistics import FIELDS, RunningStatistics, has_statistics
from workers.errors import UsageError

#: PyTorch and its parts: it is not installed where types are checked.
Torch: TypeAlias = Any
TorchTensor: TypeAlias = Any
TorchModule: TypeAlias = Any


def import_torch() -> Torch:
    """Return the module `torch`.

    Raises:
        UsageError: PyTorch is not installed.
    """
    try:
        import torch  # deferred: optional, and takes 1.5 s
    except ImportError as exc:
        raise UsageError(
            "the recorder needs PyTorch, which is not installed", hint="pip install 'dump-ingest[torch]'"
        ) from exc
    return torch


_PIECE = 1 << 24
#: What is computed of each piece, in order: counts of `FIELDS`, and what the others follow from.
_COUNTS = (
    "count",
    "nan_count",
    "pos_inf_count",
    "neg_inf_count",
    "zero_count",
    "negative_count",
    "positive_count",
)
_SUMS = (*_COUNTS, "min", "max", "mean", "m2")


def pieces_of(tensor: TorchTensor, torch: Torch) -> TorchTensor:
    """Compute the sums of each piece of a tensor, (piece, sum) of float64, on its device."""
    flat = tensor.reshape(-1)
    pieces = [_sums(flat[begin : begin + _PIECE], torch) for begin in range(0, flat.numel(), _PIECE)]
    return torch.stack(pieces) if pieces else torch.zeros((0, len(_SUMS)), dtype=torch.float64)


def _sums(piece: TorchTensor, torch: Torch) -> TorchTensor:
    if piece.is_complex():
        return _sums_of_complex(piece, torch)
    if not piece.is_floating_point():
        values = piece.to(torch.float64)
    else:
        # bfloat16, half and float8 widen to float32 without loss.
        values = piece if piece.dtype in (torch.float32, torch.float64) else piece.to(torch.float32)
    finite = torch.isfinite(values)
    return _of_finite(
        values,
        finite,
        [torch.isnan(values), values == math.inf, values == -math.inf, values == 0, values < 0, values > 0],
        torch,
    )


def _sums_of_complex(piece: TorchTensor, torch: Torch) -> TorchTensor:
    wide = piece.to(torch.complex128)
    nan = torch.isnan(wide)
    finite = torch.isfinite(wide)
    magnitude = torch.where(finite, wide.abs(), math.nan)
    none = torch.zeros_like(nan)
    return _of_finite(magnitude, finite, [nan, ~finite & ~nan, none, magnitude == 0, none, none], torch)


def _of_finite(
    values: TorchTensor, finite: TorchTensor, masks: list[TorchTensor], torch: Torch
) -> TorchTensor:
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    count = finite.sum().to(torch.float64)
    # Sums in float64, of the distances from the mean: the sum of squares would cancel.
    mean = torch.where(finite, values, zero).sum(dtype=torch.float64) / count
    distances = torch.where(finite, values.to(torch.float64) - mean, zero.to(torch.float64))
    return torch.stack(
        [
            torch.full((), values.numel(), dtype=torch.float64, device=values.device),
            *(mask.sum().to(torch.float64) for mask in masks),
            torch.where(finite, values, math.inf).amin().to(torch.float64),
            torch.where(finite, values, -math.inf).amax().to(torch.float64),
            mean,
            distances.square().sum(),
        ]
    )


def merge_pieces(pieces: npt.NDArray[np.float64], *, is_complex: bool) -> tuple[float, ...]:
    """Return the statistics in the order of `FIELDS`; NaN for those that are not computed here.

    Args:
        pieces: (piece, sum), from `pieces_of`.
        is_complex: whether the elements are complex, so that only some fields are known.
    """
    counts = pieces[:, : len(_COUNTS)].sum(axis=0)
    finite = pieces[:, 0] - pieces[:, 1:4].sum(axis=1)
    known = dict(zip(_COUNTS, counts.tolist(), strict=True))
    if finite.any():
        known |= _merged(pieces[finite > 0], finite[finite > 0], is_complex=is_complex)
    return tuple(known.get(name, math.nan) for name in FIELDS)


def _merged(
    pieces: npt.NDArray[np.float64], numbers: npt.NDArray[np.float64], *, is_complex: bool
) -> dict[str, float]:
    """Return the statistics of finite elements by name.

    Args:
        pieces: (piece, sum): those that have any.
        numbers: (piece,): how many each has.
        is_complex: whether they are complex.
    """
    low, high, means, m2 = (pieces[:, _SUMS.index(name)] for name in ("min", "max", "mean", "m2"))
    total = float(numbers.sum())
    mean = float((means * (numbers / total)).sum())
    deviations = float(m2.sum() + (numbers * (means - mean) ** 2).sum())
    l2_norm = math.sqrt(deviations + total * mean * mean)
    if is_complex:
        return {"l2_norm": l2_norm}
    std = math.sqrt(deviations / total)
    return {"min": float(low.min()), "max": float(high.max()), "mean": mean, "std": std, "l2_norm": l2_norm}


def outside_transforms(
    tensor: TorchTensor, torch: Torch
) -> tuple[TorchTensor, AbstractContextManager[object]]:
    """Return the tensor that `torch.func.grad` has wrapped, and a context in which it can be read.

    Raises:
        ValueError: it is one sample of a batch, within `torch.func.vmap`.
    """
    functorch = torch._C._functorch  # noqa: SLF001  (no public API tells it)
    if not functorch.is_functorch_wrapped_tensor(tensor):
        return tensor, nullcontext()
    while functorch.is_gradtrackingtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    if functorch.is_functorch_wrapped_tensor(tensor):
        raise ValueError("what is computed within torch.func.vmap cannot be recorded")
    from torch._functorch import pyfunctorch  # deferred: see `import_torch`

    return tensor, pyfunctorch.temporarily_clear_interpreter_stack()


def placement_of(tensor: TorchTensor) -> RecordedPlacement | None:
    """Return the placement of a DTensor on its mesh; None for any other tensor."""
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return None
    return RecordedPlacement(
        placements=tuple(map(_spelled, placements)),
        global_shape=tuple(tensor.shape),
        mesh_shape=tuple(mesh.shape),
        mesh_dim_names=tuple(mesh.mesh_dim_names or ()),
        mesh_coordinate=tuple(mesh.get_coordinate() or ()),
    )


def jax_placement_of(array: Any, device: Any) -> RecordedPlacement | None:
    """Return how an array of JAX lies on its mesh, seen from a device; None if no DTensor can lie so."""
    sharding = array.sharding
    if not hasattr(sharding, "spec") or sharding.mesh.size == 1:
        return None
    mesh, placements = sharding.mesh, dict.fromkeys(sharding.mesh.axis_names, "Replicate()")
    for dim, names in enumerate(sharding.spec):
        axes = [names] if isinstance(names, str) else [*(names or ())]
        if axes != sorted(axes, key=mesh.axis_names.index):
            return None
        placements |= dict.fromkeys(axes, f"Shard({dim})")
    return RecordedPlacement(
        placements=tuple(placements.values()),
        global_shape=tuple(array.shape),
        mesh_shape=tuple(mesh.devices.shape),
        mesh_dim_names=tuple(mesh.axis_names),
        mesh_coordinate=tuple(int(at[0]) for at in np.nonzero(mesh.devices == device)),
    )


def _spelled(placement: Any) -> str:
    """Return a placement as `Shard(0)`: how PyTorch prints one differs between versions."""
    if placement.is_replicate():
        return "Replicate()"
    if placement.is_partial():
        return f"Partial({placement.reduce_op})"  # also of a class of its own, such as that of embeddings
    dim = getattr(placement, "dim", None)
    return f"{type(placement).__name__}({'' if dim is None else dim})"


#: Of host memory, for a snapshot without its elements: name, shape, statistics, line.
ROW_NBYTES = 1024
#: Types of which torch only knows that an element is a byte: what it holds is up to whoever made it.
_BYTES = frozenset(("float4_e2m1fn_x2", *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))))

Array: TypeAlias = npt.NDArray[Any]
Row: TypeAlias = tuple[float, ...]


@dataclass(slots=True, eq=False)
class TensorSnapshot:
    """A tensor as it was at one moment. Belongs to the thread that has it; see `statistics`."""

    dtype: str
    """The element type, by its name in `workers.arrays.dtypes`."""
    shape: tuple[int, ...]
    nbytes: int
    """Bytes of host memory that its elements take; 0 for statistics only."""
    _row: Row | None = None
    _elements: Array | None = None
    """One after the other; of a device, once `_wait` has returned."""
    _pieces: Array | None = None
    """What a device computed; see `device_statistics`."""
    _wait: Callable[[], None] = field(default=lambda: None)
    _sketched: bool = False
    """Whether a histogram is counted with the statistics."""
    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: NO_BINS)
    """Known with its statistics, (bin, 3): see `workers.arrays.histogram.FIELDS`. Empty if not counted."""

    @property
    def has_elements(self) -> bool:
        """Whether the elements were copied."""
        return self._elements is not None

    def statistics(self) -> Row | None:
        """Return the statistics in the order of `FIELDS`; None for elements that are not numbers."""
        if self._row is None and self._pieces is not None:
            self._wait()
            self._row = merge_pieces(self._pieces, is_complex="complex" in self.dtype)
        if self._row is None and self._elements is not None:
            self._summarise(self.elements())
        return self._row

    def _summarise(self, elements: Array) -> None:
        if has_statistics(elements.dtype):
            running = RunningStatistics(with_histogram=self._sketched)
            running.update(elements)
            self._row, self.histogram = running.row(), running.histogram_rows()

    def without_elements(self) -> TensorSnapshot:
        """Return what is known of its elements."""
        self.statistics()
        return replace(self, nbytes=0, _elements=None)

    def elements(self) -> Array:
        """Return the elements, 1-D; none if they were not copied."""
        self._wait()
        return np.empty(0, from_name(self.dtype).to_numpy()) if self._elements is None else self._elements


class Camera:
    """Takes snapshots.

    Args:
        torch: the module.
        sketched: whether histograms are counted with statistics: on the host, from copies of elements that a
            device has.
    """

    def __init__(self, torch: Torch, *, sketched: bool = False) -> None:
        self._torch, self._sketched = torch, sketched
        self._streams: dict[Any, Any] = {}
        """By device: the stream that copies to the host."""

    def parts(self, tensor: TorchTensor) -> Iterator[tuple[tuple[str, ...], TorchTensor]]:
        """Yield the plain tensors that a tensor consists of, each with the keys that lead to it.

        A plain tensor is its only part. A DTensor is its local part; a sparse or another composite tensor has
        several parts. A tensor without memory, as on the device `meta` or while FSDP has freed it, has none.

        Raises:
            ValueError: it is in a layout that only some operators know, such as that of MKL-DNN.
        """
        torch = self._torch
        if hasattr(tensor, "to_local"):
            yield from self.parts(tensor.to_local())
        elif tensor.layout == torch.sparse_coo:
            whole = tensor.detach().coalesce()  # else their order, and whether some come twice, means nothing
            yield ("indices",), whole.indices()
            yield ("values",), whole.values()
        elif tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
            yield from _compressed_parts(
                tensor, is_by_row=tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
            )
        elif tensor.is_quantized:
            yield (), tensor.int_repr()
        elif hasattr(tensor, "__tensor_flatten__"):
            for name in tensor.__tensor_flatten__()[0]:
                for way, part in self.parts(getattr(tensor, name)):
                    yield (name, *way), part
        elif tensor.layout != torch.strided:
            raise ValueError(f"tensors of the layout {tensor.layout} cannot be recorded")
        elif tensor.device.type != "meta" and not _is_freed(tensor):
            yield (), tensor

    def is_capturing(self, tensor: TorchTensor) -> bool:
        """Return whether a CUDA graph is being captured, in which nothing can be copied to the host."""
        return tensor.device.type == "cuda" and bool(self._torch.cuda.is_current_stream_capturing())

    def take(
        self, tensor: TorchTensor, *, elements: bool, into: npt.NDArray[np.uint8] | None = None
    ) -> TensorSnapshot:
        """Return a plain tensor as it is now.

        Memory: with elements, a copy of them; on an accelerator, another one there until it has arrived.

        Args:
            tensor: one of `parts`.
            elements: whether to copy its elements, and not only to compute statistics.
            into: memory for the elements of a tensor on a CPU, as many bytes; by default new memory.
        """
        torch = self._torch
        with torch.no_grad():
            plain = tensor.detach().resolve_conj().resolve_neg()
            name, shape = str(plain.dtype).removeprefix("torch."), tuple(plain.shape)
            if name in _BYTES:
                name, plain = "uint8", plain.view(torch.uint8)
            if plain.device.type == "cpu":
                if elements:
                    # Always a copy: the optimizer, or the next operator, may write into the tensor.
                    if into is None or not len(into):
                        host = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
                    else:
                        host = torch.from_numpy(into).view(plain.dtype)
                        host.view(shape).copy_(plain)
                else:
                    host = plain.contiguous().reshape(-1)
                array = self._as_numpy(host, name)
                taken = TensorSnapshot(name, shape, host.nbytes, _elements=array, _sketched=self._sketched)
                return taken if elements else taken.without_elements()
            return self._take_from_device(plain, name, shape, elements=elements)

    def _take_from_device(
        self, plain: TorchTensor, name: str, shape: tuple[int, ...], *, elements: bool
    ) -> TensorSnapshot:
        is_counted_here = has_statistics(from_name(name)) and not (elements and self._sketched)
        pieces = pieces_of(plain, self._torch) if is_counted_here else None
        clone = plain.clone(memory_format=self._torch.contiguous_format).reshape(-1) if elements else None
        (host, host_pieces), wait = self._to_host(plain.device, (clone, pieces))
        return TensorSnapshot(
            name,
            shape,
            nbytes=host.nbytes if host is not None else 0,
            _elements=self._as_numpy(host, name) if host is not None else None,
            _pieces=host_pieces.numpy() if host_pieces is not None else None,
            _wait=wait,
            _sketched=self._sketched,
        )

    def _to_host(
        self, device: Any, tensors: tuple[TorchTensor | None, ...]
    ) -> tuple[list[TorchTensor | None], Callable[[], None]]:
        module: Any = getattr(self._torch, device.type, None)
        if not hasattr(module, "Stream"):
            return [tensor if tensor is None else tensor.cpu() for tensor in tensors], lambda: None
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = module.Stream(device)
        copies: list[TorchTensor | None] = []
        stream.wait_stream(module.current_stream(device))
        with module.stream(stream):
            for tensor in tensors:
                if tensor is None:
                    copies.append(None)
                    continue
                copy = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                copies.append(copy.copy_(tensor, non_blocking=True))
                tensor.record_stream(stream)  # its memory is not used again before it has been copied
            event = module.Event()
            event.record(stream)
        return copies, event.synchronize

    def _as_numpy(self, flat: TorchTensor, name: str) -> Array:
        """Return the elements of a contiguous 1-D tensor in host memory as numpy has them, without a copy."""
        torch, dtype = self._torch, from_name(name).to_numpy()
        if flat.dtype == torch.complex32:
            flat = torch.view_as_real(flat).reshape(-1)
        elif dtype.isbuiltin != 1:  # it is none of numpy's own, so torch does not convert it
            flat = flat.view(torch.uint8)
        array: Array = flat.numpy().view(dtype)
        return array


def _compressed_parts(
    tensor: TorchTensor, *, is_by_row: bool
) -> Iterator[tuple[tuple[str, ...], TorchTensor]]:
    yield ("compressed",), (tensor.crow_indices() if is_by_row else tensor.ccol_indices())
    yield ("plain",), (tensor.col_indices() if is_by_row else tensor.row_indices())
    yield ("values",), tensor.values()


def _is_freed(tensor: TorchTensor) -> bool:
    """Return whether its storage ends before its last element: reading it would end the process."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return bool(tensor.numel()) and end > tensor.untyped_storage().nbytes()


def snapshot_of(array: Array, *, elements: bool) -> TensorSnapshot:
    """Return an array in host memory, with its elements or only their statistics."""
    flat = np.ascontiguousarray(array).reshape(-1)
    taken = TensorSnapshot(array.dtype.name, array.shape, array.nbytes, _elements=flat)
    return taken if elements else taken.without_elements()
