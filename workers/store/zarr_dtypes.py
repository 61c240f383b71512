"""Data types that zarr-python lacks, registered through its entry point `zarr.data_type`.

They are bfloat16 and the float8 types, under the names of TensorStore and zarr-extensions, backed by
ml_dtypes. zarr-python 3.1, the newest for Python 3.11, collects these entry points but never loads them: call
`register()` once with that version.
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
_ERRORS: Any = zarr.errors if hasattr(zarr.errors, "DataTypeValidationError") else zarr.dtype
DataTypeValidationError: type[Exception] = _ERRORS.DataTypeValidationError
_INFINITIES = {"Infinity": np.inf, "-Infinity": -np.inf}


@dataclass(frozen=True, kw_only=True)
class _Float(HasItemSize, ZDType[Any, Any]):
    """A float of ml_dtypes: `class X(_Float, name="x")` makes `ml_dtypes.x` the Zarr data type `x`.

    A fill value is a number, `"NaN"`, the bits as in `"0x7fc0"`, and, if the type has infinities,
    `"Infinity"` or `"-Infinity"` (zarr-extensions, "data-types"). Zarr format 2 has no name for these types.
    """

    _native: ClassVar[np.dtype[Any]]

    def __init_subclass__(cls, name: str = "", **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if name:
            cls._zarr_v3_name = name
            cls._native = np.dtype(getattr(ml_dtypes, name))
            cls.dtype_cls = type(cls._native)

    @property
    def item_size(self) -> int:
        return int(self._native.itemsize)

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        if not isinstance(dtype, cls.dtype_cls):
            raise DataTypeValidationError(f"{dtype} is not {cls._zarr_v3_name}")
        return cls()

    def to_native_dtype(self) -> np.dtype[Any]:
        return self._native

    @classmethod
    def _from_json_v2(cls, data: Any) -> Self:
        raise DataTypeValidationError(f"{data!r}: Zarr format 2 has no {cls._zarr_v3_name}")

    @classmethod
    def _from_json_v3(cls, data: Any) -> Self:
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name!r}")
        return cls()

    def to_json(self, zarr_format: Any) -> Any:
        if zarr_format != 3:
            raise DataTypeValidationError(f"Zarr format 2 has no {self._zarr_v3_name}")
        return self._zarr_v3_name

    def _check_scalar(self, data: object) -> bool:
        return isinstance(data, int | float | np.number | self._native.type)

    def cast_scalar(self, data: object) -> Any:
        if not self._check_scalar(data):
            raise TypeError(f"{data!r} is not a number")
        return self._native.type(data)

    def default_scalar(self) -> Any:
        """Return the number without any bit set: zero, if the type has one."""
        return self._from_bits(0)

    def from_json_scalar(self, data: Any, *, zarr_format: Any) -> Any:  # noqa: ARG002
        if isinstance(data, str) and data.startswith("0x"):
            return self._from_bits(int(data, 16))
        value = self._native.type(float(data))
        if data in _INFINITIES and float(value) != _INFINITIES[data]:
            raise ValueError(f"{self._zarr_v3_name} has no {data}")
        return value

    def to_json_scalar(self, data: object, *, zarr_format: Any) -> Any:  # noqa: ARG002
        """Write a fill value as its bits: zarrs reads nothing else for float8 types."""
        return f"0x{self._bits(self.cast_scalar(data)):0{2 * self.item_size}x}"

    def _from_bits(self, bits: int) -> Any:
        if bits >> (8 * self.item_size):
            message = f"{bits:#x} has more bits than {self._zarr_v3_name}"
            raise ValueError(message)
        return np.array(bits, f"u{self.item_size}").view(self._native)[()]

    def _bits(self, scalar: Any) -> int:
        return int(np.array(scalar, self._native).view(f"u{self.item_size}")[()])


@dataclass(frozen=True, kw_only=True)
class BFloat16(HasEndianness, _Float, name="bfloat16"):
    """`bfloat16`, the upper half of a float32."""

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        """Return this type, in its byte order, for the `ml_dtypes.bfloat16` dtype."""
        if not isinstance(dtype, cls.dtype_cls):
            raise DataTypeValidationError(f"{dtype} is not bfloat16")
        return cls(endianness="big" if dtype.byteorder == ">" else "little")

    def to_native_dtype(self) -> np.dtype[Any]:
        """Return the `ml_dtypes.bfloat16` dtype in this byte order."""
        return self._native.newbyteorder(">") if self.endianness == "big" else self._native


def _named(name: str) -> type[_Float]:
    return type(name, (_Float,), {"__doc__": f"`{name}` of ml_dtypes."}, name=name)


# Of a sign, bits of exponent and of mantissa. `fn`: no infinities; `uz`: no negative zero; `b11`: the bias.
Float8E3M4 = _named("float8_e3m4")
Float8E4M3 = _named("float8_e4m3")  # TensorStore does not know it
Float8E4M3B11FNUZ = _named("float8_e4m3b11fnuz")
Float8E4M3FN = _named("float8_e4m3fn")  # "E4M3" of the Open Compute Project
Float8E4M3FNUZ = _named("float8_e4m3fnuz")
Float8E5M2 = _named("float8_e5m2")  # "E5M2" of the Open Compute Project
Float8E5M2FNUZ = _named("float8_e5m2fnuz")
Float8E8M0FNU = _named("float8_e8m0fnu")  # powers of two, no sign, zero or infinities

TYPES: tuple[type[_Float], ...] = (
    BFloat16,
    Float8E3M4,
    Float8E4M3,
    Float8E4M3B11FNUZ,
    Float8E4M3FN,
    Float8E4M3FNUZ,
    Float8E5M2,
    Float8E5M2FNUZ,
    Float8E8M0FNU,
)


def register() -> None:
    """Make the types known to zarr-python in this process. Safe to call again."""
    for cls in TYPES:
        data_type_registry.register(cls._zarr_v3_name, cls)
