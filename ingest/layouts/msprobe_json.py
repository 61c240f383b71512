"""What msProbe records about tensors: `dump.json`, and `debug.json` of the same form.

    {"task": ..., "data": {key of a call: {"input_args": [...], "input_kwargs": {...}, "output": [...]}}}

An element of a call that is a tensor is an object with `type`, `dtype`, `shape` and statistics, and
`data_name` if the tensor itself was dumped. Other elements have no `dtype`. Values may be NaN and Infinity,
which are not standard JSON.

Its statistics are torch's or MindSpore's (msProbe 26.2, `pytorch_processor.py` and `mindspore_processor.py`,
`get_stat_info`), and compare to those of `workers.arrays.statistics` as follows:

- A single NaN or infinite element makes `Max`, `Min`, `Mean` and `Norm` NaN or infinite. A finite number is
  that of the finite elements, and is taken; any other says nothing. If the mean is finite, all elements are.
- `Max_except_inf_nan` and `Min_except_inf_nan`, in older files, are our maximum and minimum.
- For complex tensors they are those of the magnitudes, and are not taken.
- For a tensor without axes `Norm` is the value with its sign.
- They are rounded to the type of the tensor or, for integers in MindSpore, to float32.
- `md5` is a CRC-32 of the elements in memory, in 8 hexadecimal digits, or an XOR in 16. For bfloat16 it may
  be that of the same values as float32. If a tensor is changed in place, it may be that of a moment later.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

from ingest.layouts.msprobe_names import tensor_name
from workers.arrays.statistics import NON_FINITE_FIELDS, Statistics
from workers.dump.formats.header import MAX_NDIM
from workers.dump.model import TensorName

#: Sections of a call, and the role of the tensors in them.
_ROLES = {"input_args": "input", "input_kwargs": "kwargs"}
#: The end of the key of what a user saved. Versions 1.2 and 1.3 did not write it.
_SAVED = ".debug"
#: It names a file for every tensor, and writes those of operators that differ from a reference (26.1).
_TASK_OF_DIFFERENCES = "diff_check"
#: How deep the elements of a call may be nested; msProbe's own limit is 400.
_MAX_DEPTH = 400
#: How many characters the names of all tensors may have, for each byte of the file and besides.
_NAMES_PER_BYTE, _MIN_NAMES = 4, 64 * 1024
#: Significant decimal digits of sums in types that have few. Numbers are printed in full, so for all other
#: types it is the nine that float32 needs.
_DIGITS = {"bfloat16": 2, "float16": 3, "half": 3}
_DEFAULT_DIGITS = 9
_CHECKSUMS = (
    ("crc32", re.compile(r"([0-9a-f]{8})")),
    ("xor64", re.compile(r"0x([0-9a-f]{16})")),
    ("md5", re.compile(r"([0-9a-f]{32})")),
)
_Index: TypeAlias = tuple[str, ...]
_Members: TypeAlias = Iterator[tuple[_Index, object]]


class NotMsProbe(ValueError):
    """The file is not JSON, or does not have this form."""


@dataclass(frozen=True, slots=True)
class JsonTensor:
    """What a file says about one tensor."""

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
    is_optional: bool = False
    """Whether that file is only written if the tensor differs from a reference."""


def read_tensors(data: bytes, *, graph: str = "", first: int = 0) -> list[JsonTensor]:
    """Return the tensors of a `dump.json` or `debug.json`, in the order of the dump.

    Takes time and memory in proportion to the size of `data`.

    Args:
        data: the file.
        graph: `graph` or `pynative`, if a dump has both.
        first: the number of the first tensor, for `TensorName.sequence`.

    Raises:
        NotMsProbe: it is cut off, or another kind of file.
    """
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise NotMsProbe(f"is not JSON: {exc}"[:200]) from exc
    calls = whole.get("data") if isinstance(whole, dict) else None
    if not isinstance(calls, dict):
        raise NotMsProbe("lacks the object `data` that msProbe writes")
    if whole.get("level") == "debug":
        calls = {f"{key.removesuffix(_SAVED)}{_SAVED}": call for key, call in calls.items()}
    tensors: list[JsonTensor] = []
    left = _MIN_NAMES + _NAMES_PER_BYTE * len(data)
    for key in _in_order(calls):
        op_name = _text(key)
        for role, index, element in _elements(key, calls[key]):
            left -= len(op_name) + sum(map(len, index))
            if left < 0:
                raise NotMsProbe("has names that are many times as long as the file")
            name = tensor_name(
                op_name,
                role,
                index,
                graph=graph,
                sequence=first + len(tensors),
                declared_dtype=_text(element["dtype"]),
            )
            tensors.append(_json_tensor(name, element, is_optional=whole.get("task") == _TASK_OF_DIFFERENCES))
    return tensors


def _in_order(calls: Collection[str]) -> list[str]:
    """Return the keys of calls in the order in which their tensors were known.

    Before 26.0, msProbe entered the gradients of the parameters of a module when the module had run forward,
    without a number, and filled them in after the backward pass.
    """
    entered_early = [key for key in calls if key.endswith(".parameters_grad")]
    return [*(key for key in calls if not key.endswith(".parameters_grad")), *reversed(entered_early)]


def _elements(key: str, call: object) -> Iterator[tuple[str, _Index, Mapping[str, Any]]]:
    """Yield the role, the index and the element of each tensor of a call."""
    for role, start, section in _sections(key, call):
        # No recursion: a file may be nested more deeply than Python's stack. One iterator for each level: the
        # indices of all elements would take far more memory than the file.
        levels: list[tuple[_Index, _Members]] = [((), iter([(start, section)]))]
        while levels:
            above, members = levels[-1]
            step, element = next(members, (None, None))
            if step is None:
                levels.pop()
                continue
            index = (*above, *step)
            if len(index) > _MAX_DEPTH:
                continue
            if _is_tensor(element):
                yield role, index, element
            else:
                levels.append((index, _below(element)))


def _sections(key: str, call: object) -> list[tuple[str, _Index, object]]:
    """Return the role, the first indices and the content of each section of a call."""
    if key.endswith(_SAVED) or not isinstance(call, dict):
        return [("debug", (), call)]
    if ".parameters_grad" in key:
        # For each parameter a list of one tensor.
        return [
            (
                "parameters_grad",
                (_text(name),),
                value[0] if isinstance(value, list) and len(value) == 1 else value,
            )
            for name, value in call.items()
        ]
    return [(_ROLES.get(name, _text(name)), (), value) for name, value in call.items()]


def _below(element: object) -> _Members:
    """Yield the members of an element, each with the indices that lead to it."""
    if isinstance(element, list):
        yield from (((str(number),), below) for number, below in enumerate(element))
    elif isinstance(element, dict) and "class_type" in element:
        # An operation of point-to-point communication; its tensor has the index of the operation.
        yield (), element.get("tensor")
    elif isinstance(element, dict):
        yield from (((_text(name),), below) for name, below in element.items())


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


def _json_tensor(name: TensorName, tensor: Mapping[str, Any], *, is_optional: bool) -> JsonTensor:
    dtype = tensor["dtype"].casefold().rpartition(".")[2]
    shape = tuple(tensor["shape"])
    data_name = tensor.get("data_name")
    return JsonTensor(
        name=name,
        dtype=name.declared_dtype,
        shape=shape,
        statistics=_statistics(tensor, dtype, shape),
        digits=_DIGITS.get(dtype, _DEFAULT_DIGITS),
        checksum=_checksum(tensor.get("md5")),
        data_name=data_name if isinstance(data_name, str) else "",
        is_optional=is_optional,
    )


def _statistics(tensor: Mapping[str, Any], dtype: str, shape: tuple[int, ...]) -> Statistics:
    count = _number(math.prod(shape))
    if "complex" in dtype:
        return Statistics(count=count)
    low, high = _first_number(tensor, "Min"), _first_number(tensor, "Max")
    if low > high:
        low = high = math.nan
    mean, norm = _number(tensor.get("Mean")), _number(tensor.get("Norm"))
    if not shape:
        norm = abs(norm)
    is_float = "float" in dtype or dtype in ("half", "double")
    non_finite = 0.0 if not is_float or math.isfinite(mean) else math.nan
    return Statistics(
        count=count,
        min=low,
        max=high,
        mean=mean,
        l2_norm=norm if norm >= 0 else math.nan,
        **dict.fromkeys(NON_FINITE_FIELDS, non_finite),
    )


def _first_number(tensor: Mapping[str, Any], name: str) -> float:
    number = _number(tensor.get(name))
    return number if math.isfinite(number) else _number(tensor.get(f"{name}_except_inf_nan"))


def _number(value: object) -> float:
    """Return a number that is finite in float64; NaN for anything else."""
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
            if match := pattern.fullmatch(value):
                return f"{kind}:{match[1]}"
    return ""


def _text(value: str) -> str:
    # JSON may contain half a surrogate pair, which a text column cannot.
    return value.encode(errors="replace").decode()
