"""What msProbe writes down about tensors: `dump.json`, and `debug.json` of the same form.

    {"task": ..., "data": {key of a call: {"input_args": [...], "input_kwargs": {...}, "output": [...]}}}

An element of a call that is a tensor is an object with `type`, `dtype`, `shape` and statistics, and
`data_name` where the tensor itself was dumped; what is no tensor has no `dtype`. Values may be NaN and
Infinity, which JSON does not have.

Its statistics are torch's or MindSpore's (msProbe 26.2, `pytorch_processor.py` and `mindspore_processor.py`,
`get_stat_info`), and compare to those of `workers.arrays.statistics` as follows:

- `Max`, `Min`, `Mean` and `Norm` become NaN, or infinite, by one such element. A finite number is that of the
  finite elements, and is taken; another tells nothing. Where the mean is finite, all elements are.
- `Max_except_inf_nan` and `Min_except_inf_nan`, in older files, are what we call maximum and minimum.
- Of complex tensors they are of the magnitudes, and are not taken.
- Of a tensor without axes `Norm` is the value with its sign.
- They are rounded to the type of the tensor, or, of integers in MindSpore, to float32.
- `md5` is a CRC-32 of the elements as they lie in memory, in 8 hexadecimal digits, or an XOR in 16. Of
  bfloat16 it may be that of the same values as float32; of what is changed in place, that of a moment later.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ingest.layouts.msprobe_names import tensor_name
from workers.arrays.statistics import Statistics
from workers.dump.formats.header import MAX_NDIM
from workers.dump.model import TensorName

#: Sections of a call, and the role of the tensors in them.
_ROLES = {"input_args": "input", "input_kwargs": "kwargs"}
#: How deep the elements of a call may be nested; msProbe's own limit is 400.
_MAX_DEPTH = 400
#: Significant decimal digits of sums in the types that have few. Numbers are printed in full, so of all
#: others it is the nine that float32 needs.
_DIGITS = {"bfloat16": 2, "float16": 3, "half": 3}
_DEFAULT_DIGITS = 9
_CHECKSUMS = (
    ("crc32", re.compile(r"([0-9a-f]{8})")),
    ("xor64", re.compile(r"0x([0-9a-f]{16})")),
    ("md5", re.compile(r"([0-9a-f]{32})")),
)


class NotMsProbe(ValueError):
    """The file is no JSON, or not of this form."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a file tells about one tensor."""

    name: TensorName
    dtype: str
    """As the file spells it: `torch.float32`, `Float32`."""
    shape: tuple[int, ...]
    statistics: Statistics
    digits: int
    """Significant decimal digits of mean and norm."""
    checksum: str
    """With its kind: `crc32:...`; "" if there is none."""
    data_name: str
    """The name of the file with the tensor itself; "" if there is none."""


def read_tensors(data: bytes, *, graph: str = "", first: int = 0) -> list[Told]:
    """Return the tensors of a `dump.json` or `debug.json`, in its order.

    Takes time and memory in proportion to the size of `data`.

    Args:
        data: the file.
        graph: `graph` or `pynative`, where a dump has both.
        first: where to begin to count the tensors, for `TensorName.sequence`.

    Raises:
        NotMsProbe: it is cut off, or something else.
    """
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise NotMsProbe(f"is no JSON: {exc}"[:200]) from exc
    calls = whole.get("data") if isinstance(whole, dict) else None
    if not isinstance(calls, dict):
        raise NotMsProbe("has no object `data`, which msProbe writes")
    found: list[Told] = []
    for key, call in calls.items():
        for role, index, tensor in _tensors(key, call):
            name = tensor_name(
                _text(key),
                role,
                index,
                graph=graph,
                sequence=first + len(found),
                declared_dtype=_text(tensor["dtype"]),
            )
            found.append(_told(name, tensor))
    return found


def _tensors(key: str, call: object) -> Iterator[tuple[str, tuple[str, ...], Mapping[str, Any]]]:
    """Yield the role, the index and the element of each tensor of a call."""
    if key.endswith(".debug") or not isinstance(call, dict):
        sections: list[tuple[str, tuple[str, ...], object]] = [("debug", (), call)]
    elif ".parameters_grad" in key:
        # One list of one tensor per parameter.
        sections = [
            (
                "parameters_grad",
                (_text(name),),
                value[0] if isinstance(value, list) and len(value) == 1 else value,
            )
            for name, value in call.items()
        ]
    else:
        sections = [(_ROLES.get(name, _text(name)), (), value) for name, value in call.items()]
    for role, start, section in sections:
        ahead = [(start, section)]  # no recursion: a file may be nested more deeply than Python's stack
        while ahead:
            index, element = ahead.pop()
            if len(index) > _MAX_DEPTH:
                continue
            if _is_tensor(element):
                yield role, index, element
            elif isinstance(element, list):
                ahead += [((*index, str(n)), below) for n, below in enumerate(element)][::-1]
            elif isinstance(element, dict) and "class_type" in element:
                # An operation of point-to-point communication; its tensor goes by the index of the operation.
                ahead.append((index, element.get("tensor")))
            elif isinstance(element, dict):
                ahead += [((*index, _text(name)), below) for name, below in element.items()][::-1]


def _is_tensor(element: object) -> TypeGuard[Mapping[str, Any]]:
    if not isinstance(element, dict) or not isinstance(element.get("type"), str):
        return False
    shape = element.get("shape")
    return (
        isinstance(element.get("dtype"), str)
        and isinstance(shape, list)
        and len(shape) <= MAX_NDIM
        and all(type(n) is int and 0 <= n < 2**62 for n in shape)
    )


def _told(name: TensorName, tensor: Mapping[str, Any]) -> Told:
    dtype = tensor["dtype"].casefold().rpartition(".")[2]
    shape = tuple(tensor["shape"])
    data_name = tensor.get("data_name")
    return Told(
        name=name,
        dtype=name.declared_dtype,
        shape=shape,
        statistics=_statistics(tensor, dtype, shape),
        digits=_DIGITS.get(dtype, _DEFAULT_DIGITS),
        checksum=_checksum(tensor.get("md5")),
        data_name=data_name if isinstance(data_name, str) else "",
    )


def _statistics(tensor: Mapping[str, Any], dtype: str, shape: tuple[int, ...]) -> Statistics:
    count = float(math.prod(shape))
    if "complex" in dtype:
        return Statistics(count=count)
    low, high = _first_number(tensor, "Min"), _first_number(tensor, "Max")
    if low > high:
        low = high = math.nan
    mean, norm = _number(tensor.get("Mean")), _number(tensor.get("Norm"))
    if not shape:
        norm = abs(norm)
    is_float = "float" in dtype or dtype in ("half", "double")
    bad = 0.0 if not is_float or math.isfinite(mean) else math.nan
    return Statistics(
        count=count,
        nan_count=bad,
        pos_inf_count=bad,
        neg_inf_count=bad,
        min=low,
        max=high,
        mean=mean,
        l2_norm=norm if norm >= 0 else math.nan,
    )


def _first_number(tensor: Mapping[str, Any], name: str) -> float:
    number = _number(tensor.get(name))
    return number if math.isfinite(number) else _number(tensor.get(f"{name}_except_inf_nan"))


def _number(value: object) -> float:
    """Return a finite number; NaN for anything else."""
    if not isinstance(value, int | float):  # a boolean is an int
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _checksum(value: object) -> str:
    if isinstance(value, str):
        for kind, pattern in _CHECKSUMS:
            if found := pattern.fullmatch(value):
                return f"{kind}:{found[1]}"
    return ""


def _text(value: str) -> str:
    # JSON may hold half a surrogate pair, which no text column can.
    return value.encode(errors="replace").decode()
