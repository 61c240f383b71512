"""The tensors in what a module takes and returns: tuples, dictionaries, dataclasses, one in the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

#: How deep values may be nested, and how many tensors of one value are recorded.
_MAX_DEPTH = 8
_MAX_TENSORS = 4096
#: Characters of a key that become part of a name.
_MAX_KEY = 80

Way = tuple[str, ...]


def tensors_in(value: Any, tensor_type: type) -> Iterator[tuple[Way, Any]]:
    """Yield the tensors in a value, each with the keys and indices that lead to it.

    Tuples, lists, mappings (also those of Transformers), named tuples and dataclasses are looked into; other
    objects are not. At most 4096 tensors, and those at most eight levels deep.

    Args:
        value: what a module takes or returns.
        tensor_type: `torch.Tensor`.
    """
    for number, tensor_at in enumerate(_walk(value, tensor_type, ())):
        if number == _MAX_TENSORS:
            return
        yield tensor_at


def _walk(value: Any, tensor_type: type, way: Way) -> Iterator[tuple[Way, Any]]:
    if isinstance(value, tensor_type):
        yield way, value
    elif len(way) < _MAX_DEPTH:
        for key, below in _below(value):
            yield from _walk(below, tensor_type, (*way, str(key)[:_MAX_KEY]))


def _below(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name, None)) for field in fields(value))


def io_and_slot(role: str, way: Way) -> tuple[str, int]:
    """Return the label and the number of a tensor, as those of msProbe.

    >>> io_and_slot("output", ()), io_and_slot("input", ("1", "0")), io_and_slot("output", ("logits",))
    (('output', 0), ('input.1', 0), ('output.logits', 0))
    """
    if not way:
        return role, 0
    if way[-1].isascii() and way[-1].isdecimal() and len(way[-1]) < 10:
        return ".".join((role, *way[:-1])), int(way[-1])
    return ".".join((role, *way)), 0
