"""Data types that zarr-python lacks, registered through its entry point `zarr.data_type`.

zarr-python 3.1, the newest for Python 3.11, collects these entry points but never loads them: there, call
`register()` once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import ml_dtypes
import numpy as np
import zarr.dtype
import zarr.errors
from zarr.core.dtype import data_type_registry
from zarr.core.dtype.common import HasEndianness, HasItemSize
from zarr.core.dtype.wrapper import ZDType

# It moved after zarr 3.1.
DataTypeValidationError: type[Exception] = (
    getattr(zarr.errors, "DataTypeValidationError", None) or zarr.dtype.DataTypeValidationError
)
_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, kw_only=True)
class BFloat16(HasEndianness, HasItemSize, ZDType[Any, Any]):
    """`bfloat16`, the upper half of a float32, under the name that TensorStore and zarrs use.

    Extension data type "bfloat16" of zarr-extensions; backed by `ml_dtypes.bfloat16`. Its fill value is a
    number, `"NaN"`, `"Infinity"`, `"-Infinity"`, or the bits as `"0x7fc0"`. Zarr format 2 has no name for it.
    """

    dtype_cls: ClassVar[Any] = type(_BFLOAT16)
    _zarr_v3_name: ClassVar[str] = "bfloat16"

    @property
    def item_size(self) -> int:
        """Bytes per element."""
        return int(_BFLOAT16.itemsize)

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        """Return this type for the `ml_dtypes.bfloat16` dtype."""
        if not isinstance(dtype, cls.dtype_cls):
            raise DataTypeValidationError(f"{dtype} is not bfloat16")
        return cls(endianness="big" if dtype.byteorder == ">" else "little")

    def to_native_dtype(self) -> np.dtype[Any]:
        """Return the `ml_dtypes.bfloat16` dtype in this byte order."""
        return _BFLOAT16.newbyteorder(">") if self.endianness == "big" else _BFLOAT16

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        raise DataTypeValidationError(f"{data!r}: Zarr format 2 has no bfloat16")

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name!r}")
        return cls()

    def to_json(self, zarr_format: Any) -> Any:
        """Return the name of the type as it stands in array metadata."""
        if zarr_format != 3:
            raise DataTypeValidationError("Zarr format 2 has no bfloat16")
        return self._zarr_v3_name

    def _check_scalar(self, data: object) -> bool:
        return isinstance(data, int | float | np.number | ml_dtypes.bfloat16)

    def cast_scalar(self, data: object) -> Any:
        """Return a Python or numpy number as a bfloat16 scalar."""
        if not self._check_scalar(data):
            message = f"{data!r} is no number"
            raise TypeError(message)
        return _BFLOAT16.type(data)

    def default_scalar(self) -> Any:
        """Return zero."""
        return _BFLOAT16.type(0)

    def from_json_scalar(self, data: Any, *, zarr_format: Any) -> Any:  # noqa: ARG002
        """Read a fill value."""
        if isinstance(data, str) and data.startswith("0x"):
            return np.array(int(data, 16), np.uint16).view(_BFLOAT16)[()]
        return _BFLOAT16.type(float(data))

    def to_json_scalar(self, data: object, *, zarr_format: Any) -> Any:  # noqa: ARG002
        """Write a fill value."""
        value = float(self.cast_scalar(data))
        if np.isnan(value):
            return "NaN"
        if np.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return value


def register() -> None:
    """Make the types known to zarr-python in this process; nothing happens when they are."""
    data_type_registry.register("bfloat16", BFloat16)
