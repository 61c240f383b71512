"""A tensor as it is at one moment: its statistics, or a copy of its elements in host memory.

On a CPU, the statistics are computed where the tensor lies, in one pass and without a copy. On an
accelerator, kernels on the current stream compute them (`device_statistics`), and a clone on the current
stream keeps the elements as they are; another stream copies either to the host. The training thread does not
wait for the accelerator; whoever reads the snapshot does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.recording.device_statistics import merge_pieces, pieces_of
from ingest.recording.torch_module import Torch, TorchTensor
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import RunningStatistics, has_statistics

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
    """Returns when the copies from the device have arrived."""

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
            self._row = _row_of(self.elements())
        return self._row

    def elements(self) -> Array:
        """Return the elements, 1-D; none if they were not copied."""
        self._wait()
        return np.empty(0, from_name(self.dtype).to_numpy()) if self._elements is None else self._elements


class Camera:
    """Takes snapshots.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self._streams: dict[Any, Any] = {}
        """By device: the stream that copies to the host."""

    def parts(self, tensor: TorchTensor) -> Iterator[tuple[tuple[str, ...], TorchTensor]]:
        """Yield the plain tensors that a tensor consists of, each with the keys that lead to it.

        A plain tensor is its only part. A DTensor is its local part; a sparse or another composite tensor has
        several parts. A tensor without memory, as on the device `meta`, has none.

        Raises:
            ValueError: it is in a layout that only some operators know, such as that of MKL-DNN.
        """
        torch = self._torch
        if hasattr(tensor, "to_local"):
            yield from self.parts(tensor.to_local())
        elif tensor.layout == torch.sparse_coo:
            yield ("indices",), tensor._indices()  # noqa: SLF001  (the public one wants a coalesced tensor)
            yield ("values",), tensor._values()  # noqa: SLF001  (the same)
        elif tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
            is_by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
            yield ("compressed",), (tensor.crow_indices() if is_by_row else tensor.ccol_indices())
            yield ("plain",), (tensor.col_indices() if is_by_row else tensor.row_indices())
            yield ("values",), tensor.values()
        elif tensor.is_quantized:
            yield (), tensor.int_repr()
        elif hasattr(tensor, "__tensor_flatten__"):
            for name in tensor.__tensor_flatten__()[0]:
                for way, part in self.parts(getattr(tensor, name)):
                    yield (name, *way), part
        elif tensor.layout != torch.strided:
            raise ValueError(f"tensors of the layout {tensor.layout} cannot be recorded")
        elif tensor.device.type != "meta":
            yield (), tensor

    def is_capturing(self, tensor: TorchTensor) -> bool:
        """Return whether a CUDA graph is being captured, in which nothing can be copied to the host."""
        return tensor.device.type == "cuda" and bool(self._torch.cuda.is_current_stream_capturing())

    def take(self, tensor: TorchTensor, *, elements: bool) -> TensorSnapshot:
        """Return a plain tensor as it is now.

        Memory: with elements, a copy of them; on an accelerator, another one there until it has arrived.

        Args:
            tensor: one of `parts`.
            elements: whether to copy its elements, and not only to compute statistics.
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
                    host = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
                    return TensorSnapshot(name, shape, host.nbytes, _elements=self._as_numpy(host, name))
                return TensorSnapshot(name, shape, 0, _row=_row_of(self._as_numpy(plain.reshape(-1), name)))
            return self._take_from_device(plain, name, shape, elements=elements)

    def _take_from_device(
        self, plain: TorchTensor, name: str, shape: tuple[int, ...], *, elements: bool
    ) -> TensorSnapshot:
        pieces = pieces_of(plain, self._torch) if has_statistics(from_name(name)) else None
        clone = plain.clone(memory_format=self._torch.contiguous_format).reshape(-1) if elements else None
        (host, host_pieces), wait = self._to_host(plain.device, (clone, pieces))
        return TensorSnapshot(
            name,
            shape,
            nbytes=host.nbytes if host is not None else 0,
            _elements=self._as_numpy(host, name) if host is not None else None,
            _pieces=host_pieces.numpy() if host_pieces is not None else None,
            _wait=wait,
        )

    def _to_host(
        self, device: Any, tensors: tuple[TorchTensor | None, ...]
    ) -> tuple[list[TorchTensor | None], Callable[[], None]]:
        """Begin to copy tensors to the host; return the copies, and what waits for them."""
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


def _row_of(elements: Array) -> Row | None:
    if not has_statistics(elements.dtype):
        return None
    running = RunningStatistics()
    running.update(elements)
    return running.row()


def by_name(row: Row | None, names: tuple[str, ...]) -> dict[str, float | None]:
    """Return statistics by name, None for those that are not known."""
    if row is None:
        return {}
    return {name: value if math.isfinite(value) else None for name, value in zip(names, row, strict=True)}
