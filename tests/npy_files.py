"""Make dump files: npy files with any content, named as MindSpore names them."""

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

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
