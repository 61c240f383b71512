"""Overflow records of Ascend devices (`Opdebug.Node_OpDebug...`): which task exceeded the range of its type.

A record is output 0 of a DumpData file, or JSON that a converter made from it. There are two layouts, both
little-endian (msProbe, `dump_data_parser.py`; MindSpore, `overflow_dumper`):

- 2048 bytes with a block for each of three units: six words (uint64) that name the task, at 0, 128 and 256,
  and status words at 512, 768 and, with two more, at 1024;
- six words of uint32, of which the first is magic, and one block of uint64 words, which depend on the unit.

The task and the stream in the name of the file belong to the check itself. The record has the task and the
stream that failed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from workers.errors import UnreadableTensor

MAGIC = 0x5A5A5A5A
#: The longest record that is accepted, in bytes; also for JSON.
MAX_RECORD_BYTES = 64 * 2**10
_OLD_BYTES = 2048
_PREAMBLE = struct.Struct("<6I")
#: The words of the preamble, without the magic and the code of the unit.
_ACCELERATOR = ("version", "valid", "rsv", "data_len")
_WORD_BYTES = 8

_TASK = ("model_id", "stream_id", "task_id", "task_type")
#: For the old layout: the unit, offset of the words that name the task, offset and names of the others.
_OLD_UNITS = (
    ("DHA Atomic Add", 0, 512, ("status",)),
    ("L2 Atomic Add", 128, 768, ("status",)),
    ("AI Core", 256, 1024, ("kernel_code", "block_idx", "status")),
)
_OLD_TASK = (*_TASK, "pc_start", "para_base")
_CORE = (
    *(*_TASK, "context_id", "thread_id", "pc_start", "para_base"),
    *("core_id", "block_id", "status"),
)
#: For the magic layout: the words of each unit, in order of the codes of `acc_type`.
_UNITS = {
    "AIC": _CORE,
    "AIV": _CORE,
    "AICPU": (*_TASK, "context_id", "cpu_id", "thread_id", "status"),
    "SDMA": (*_TASK, "context_id", "thread_id", "src_addr", "dst_addr", "channel_id", "status"),
}
#: The number of status words of AIC and AIV in version 1 of the magic layout.
_LONG_STATUS = 4
#: Written as hexadecimal text in JSON.
_ADDRESSES = frozenset(["pc_start", "para_base", "src_addr", "dst_addr", "kernel_code"])

#: The words that identify the task of an overflow.
_FAILED = ("model_id", "stream_id", "task_id")

Word: TypeAlias = int | tuple[int, ...]


class Failure(NamedTuple):
    """One overflow, and the task in which it happened: its files have the same stream and task."""

    unit: str
    model_id: int
    stream_id: int
    task_id: int
    status: tuple[int, ...]
    """The status words, whose bits tell the kind of overflow."""


@dataclass(frozen=True, slots=True)
class OverflowRecord:
    """The content of one overflow file."""

    units: Mapping[str, Mapping[str, Word]]
    """What each unit of the device reports: words by name, of which only a status can be several numbers. A
    unit is named as the vendor's tools call it: `AI Core`, `AIV`, `SDMA`..."""
    accelerator: Mapping[str, int] | None = None
    """The words before the only block in the magic layout; None for the old one."""

    def failures(self) -> tuple[Failure, ...]:
        """Return the overflows, one for each unit that has one."""
        failed = [
            (unit, {name: _numbers(word) for name, word in words.items()})
            for unit, words in self.units.items()
            if (
                self.accelerator["valid"]
                if self.accelerator
                else any(map(any, map(_numbers, words.values())))
            )
        ]
        return tuple(
            Failure(
                unit,
                **{name: words.get(name, (0,))[0] for name in _FAILED},
                status=words.get("status", (0,)),
            )
            for unit, words in failed
        )

    def to_json(self) -> dict[str, Any]:
        """Return the same JSON as the vendor's converter (msaccucmp) writes for this record."""
        units = {
            unit: {name: _as_json(name, word) for name, word in words.items()}
            for unit, words in self.units.items()
        }
        if self.accelerator is None:
            return units
        ((unit, words),) = units.items()
        version, valid, rsv, data_len = (self.accelerator[name] for name in _ACCELERATOR)
        block = {"valid": valid, "acc_type": unit, "rsv": rsv, "data_len": data_len, "data": words}
        return {"magic": hex(MAGIC), "version": version, "acc_list": block}


def _as_json(name: str, word: Word) -> Any:
    if isinstance(word, tuple):
        return list(word)
    return hex(word) if name in _ADDRESSES else word


def _numbers(word: Word) -> tuple[int, ...]:
    return (word,) if isinstance(word, int) else word


def parse(payload: bytes) -> OverflowRecord:
    """Return the record that output 0 of an overflow file holds.

    Raises:
        UnreadableTensor: it has another size than either layout, or names an unknown unit.
    """
    if len(payload) >= _PREAMBLE.size and payload.startswith(MAGIC.to_bytes(4, "little")):
        return _parse_magic(payload)
    if len(payload) != _OLD_BYTES:
        raise UnreadableTensor(
            f"has {len(payload)} bytes, but an overflow record of this layout has {_OLD_BYTES}"
        )
    return OverflowRecord(
        {
            unit: _words(payload, begin, _OLD_TASK) | _words(payload, more_begin, more_names)
            for unit, begin, more_begin, more_names in _OLD_UNITS
        }
    )


def _parse_magic(payload: bytes) -> OverflowRecord:
    _, version, valid, code, rsv, data_len = _PREAMBLE.unpack_from(payload)
    if code >= len(_UNITS):
        raise UnreadableTensor(f"is an overflow record of the unknown unit {code}")
    unit, names = list(_UNITS.items())[code]
    # Version 1 of both kinds of cores has four status words in the place of the last one.
    count = len(names) + (_LONG_STATUS - 1 if version == 1 and names is _CORE else 0)
    needed = _PREAMBLE.size + _WORD_BYTES * count
    if len(payload) < needed:
        raise UnreadableTensor(f"has {len(payload)} bytes, but an overflow record of {unit} has {needed}")
    words = _words(payload, _PREAMBLE.size, names)
    if count > len(names):
        words["status"] = struct.unpack_from(
            f"<{_LONG_STATUS}Q", payload, needed - _WORD_BYTES * _LONG_STATUS
        )
    return OverflowRecord(
        {unit: words}, dict(zip(_ACCELERATOR, (version, valid, rsv, data_len), strict=True))
    )


def _words(payload: bytes, begin: int, names: tuple[str, ...]) -> dict[str, Word]:
    return dict(zip(names, struct.unpack_from(f"<{len(names)}Q", payload, begin), strict=True))


def _json_object(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_RECORD_BYTES:
        raise UnreadableTensor(f"has {len(text)} bytes, more than an overflow record")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UnreadableTensor("is an overflow record that is not JSON") from exc
    if not isinstance(content, dict):
        raise UnreadableTensor("is an overflow record that is not a JSON object")
    return content


def parse_json(text: bytes) -> OverflowRecord:
    """Return the record that a converter (msaccucmp) or MindSpore wrote as JSON.

    Versions of the writers differ in the words that they write: the record has those that the JSON has.

    Raises:
        UnreadableTensor: it is not JSON, or not the JSON of a record; perhaps it is still being written.
    """
    content = _json_object(text)
    if "acc_list" in content:
        accelerator = content["acc_list"]
        if not isinstance(accelerator, dict) or accelerator.get("acc_type") not in tuple(_UNITS):
            raise UnreadableTensor("is an overflow record of an unknown unit")
        unit = accelerator["acc_type"]
        told = {**accelerator, "version": content.get("version")}
        words = {name: _number("word", told.get(name)) for name in _ACCELERATOR}
        return OverflowRecord({unit: _words_of_json(unit, accelerator.get("data"))}, words)
    # Converters keep this order; MindSpore sorts the units.
    units = {unit: _words_of_json(unit, content[unit]) for unit, *_ in _OLD_UNITS if unit in content}
    if not units:
        raise UnreadableTensor("is JSON without any unit of an overflow record")
    return OverflowRecord(units)


def _words_of_json(unit: str, content: object) -> dict[str, Word]:
    if not isinstance(content, dict):
        raise UnreadableTensor(f"is an overflow record without words of {unit}")
    words: dict[str, Word] = {
        name: tuple(_number(name, number) for number in value)
        if isinstance(value, list)
        else _number(name, value)
        for name, value in content.items()
    }
    if "stream_id" not in words or "task_id" not in words:
        raise UnreadableTensor(f"is an overflow record that does not name the task of {unit}")
    return words


def _number(name: str, value: object) -> int:
    try:
        number = int(value, 16) if isinstance(value, str) else value
    except ValueError:
        number = None
    if type(number) is not int or not 0 <= number < 2**64:
        raise UnreadableTensor(f"is an overflow record whose {name:.40} is not a number of 64 bits")
    return number
