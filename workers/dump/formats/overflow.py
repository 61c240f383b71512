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
from typing import Any, TypeAlias

from workers.errors import UnreadableTensor

MAGIC = 0x5A5A5A5A
#: The longest record that is accepted, in bytes; also for JSON.
MAX_RECORD_BYTES = 64 * 2**10
_OLD_BYTES = 2048
_PREAMBLE = struct.Struct("<6I")  # magic, version, valid, acc_type, rsv, data_len
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
_CODES = tuple(_UNITS)
#: The number of status words of AIC and AIV in version 1 of the magic layout.
_LONG_STATUS = 4
#: Written as hexadecimal text in JSON.
_ADDRESSES = frozenset(["pc_start", "para_base", "src_addr", "dst_addr", "kernel_code"])

Word: TypeAlias = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """What one unit of the device reports."""

    unit: str
    """As the vendor's tools call it: `AI Core`, `AIV`, `SDMA`..."""
    words: Mapping[str, Word]
    """By name. Only a status can be several numbers."""
    overflowed: bool

    def number(self, name: str) -> int:
        """Return a word that is a single number; 0 if the unit does not report it."""
        word = self.words.get(name, 0)
        return word if isinstance(word, int) else 0

    @property
    def status(self) -> tuple[int, ...]:
        """The status words, whose bits tell the kind of overflow."""
        word = self.words.get("status", 0)
        return (word,) if isinstance(word, int) else word

    def to_json(self) -> dict[str, Any]:
        """Return the words as the vendor's converter writes them."""
        return {name: _word_json(name, word) for name, word in self.words.items()}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The words before the block in the magic layout."""

    version: int
    valid: int
    rsv: int
    data_len: int
    """Bytes of the block."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One overflow, and the task in which it happened: its files have the same stream and task."""

    unit: str
    model_id: int
    stream_id: int
    task_id: int
    status: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OverflowRecord:
    """The content of one overflow file."""

    blocks: tuple[RecordBlock, ...]
    accelerator: Accelerator | None = None
    """None for the old layout."""

    def failures(self) -> tuple[Failure, ...]:
        """Return the overflows, one for each block that has one."""
        return tuple(
            Failure(
                block.unit,
                block.number("model_id"),
                block.number("stream_id"),
                block.number("task_id"),
                block.status,
            )
            for block in self.blocks
            if block.overflowed
        )

    def to_json(self) -> dict[str, Any]:
        """Return the same JSON as the vendor's converter (msaccucmp) writes for this record."""
        accelerator = self.accelerator
        if accelerator is None:
            return {block.unit: block.to_json() for block in self.blocks}
        return {
            "magic": hex(MAGIC),
            "version": accelerator.version,
            "acc_list": {
                "valid": accelerator.valid,
                "acc_type": self.blocks[0].unit,
                "rsv": accelerator.rsv,
                "data_len": accelerator.data_len,
                "data": self.blocks[0].to_json(),
            },
        }


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
    blocks = []
    for unit, begin, more_begin, more_names in _OLD_UNITS:
        words: dict[str, Word] = {
            **_words(payload, begin, _OLD_TASK),
            **_words(payload, more_begin, more_names),
        }
        blocks.append(RecordBlock(unit, words, overflowed=any(words.values())))
    return OverflowRecord(tuple(blocks))


def _parse_magic(payload: bytes) -> OverflowRecord:
    _, version, valid, code, rsv, data_len = _PREAMBLE.unpack_from(payload)
    if code >= len(_CODES):
        raise UnreadableTensor(f"is an overflow record of the unknown unit {code}")
    unit = _CODES[code]
    names = _UNITS[unit]
    long_status = _has_long_status(unit, version)
    needed = _PREAMBLE.size + _WORD_BYTES * (len(names) + (_LONG_STATUS - 1) * long_status)
    if len(payload) < needed:
        raise UnreadableTensor(f"has {len(payload)} bytes, but an overflow record of {unit} has {needed}")
    words: dict[str, Word] = {**_words(payload, _PREAMBLE.size, names)}
    if long_status:
        words["status"] = struct.unpack_from(
            f"<{_LONG_STATUS}Q", payload, needed - _WORD_BYTES * _LONG_STATUS
        )
    block = RecordBlock(unit, words, overflowed=valid != 0)
    return OverflowRecord((block,), Accelerator(version, valid, rsv, data_len))


def _has_long_status(unit: str, version: int) -> bool:
    return version == 1 and unit in ("AIC", "AIV")


def _words(payload: bytes, begin: int, names: tuple[str, ...]) -> dict[str, int]:
    return dict(zip(names, struct.unpack_from(f"<{len(names)}Q", payload, begin), strict=True))


def parse_json(text: bytes) -> OverflowRecord:
    """Return the record that a converter (msaccucmp) or MindSpore wrote as JSON.

    Versions of the writers differ in the words that they write: the record has those that the JSON has.

    Raises:
        UnreadableTensor: it is not JSON, or not the JSON of a record; perhaps it is still being written.
    """
    if len(text) > MAX_RECORD_BYTES:
        raise UnreadableTensor(f"has {len(text)} bytes, more than an overflow record")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UnreadableTensor("is an overflow record that is not JSON") from exc
    if not isinstance(content, dict):
        raise UnreadableTensor("is an overflow record that is not a JSON object")
    if "acc_list" in content:
        return _parse_magic_json(content)
    # Converters keep this order; MindSpore sorts the units.
    blocks = []
    for unit, *_ in _OLD_UNITS:
        if unit in content:
            words = _words_of_json(unit, content[unit])
            overflowed = any(any(word) if isinstance(word, tuple) else word for word in words.values())
            blocks.append(RecordBlock(unit, words, overflowed=overflowed))
    if not blocks:
        raise UnreadableTensor("is JSON without any unit of an overflow record")
    return OverflowRecord(tuple(blocks))


def _parse_magic_json(content: Mapping[str, Any]) -> OverflowRecord:
    accelerator = content["acc_list"]
    if not isinstance(accelerator, dict) or accelerator.get("acc_type") not in _CODES:
        raise UnreadableTensor("is an overflow record of an unknown unit")
    numbers = [content.get("version"), *(accelerator.get(name) for name in ("valid", "rsv", "data_len"))]
    version, valid, rsv, data_len = (_number("word", number) for number in numbers)
    unit = accelerator["acc_type"]
    block = RecordBlock(unit, _words_of_json(unit, accelerator.get("data")), overflowed=valid != 0)
    return OverflowRecord((block,), Accelerator(version, valid, rsv, data_len))


def _words_of_json(unit: str, content: object) -> dict[str, Word]:
    if not isinstance(content, dict):
        raise UnreadableTensor(f"is an overflow record without words of {unit}")
    words: dict[str, Word] = {}
    for name, value in content.items():
        if isinstance(value, list):
            words[name] = tuple(_number(name, number) for number in value)
        else:
            words[name] = _number(name, value)
    if "stream_id" not in words or "task_id" not in words:
        raise UnreadableTensor(f"is an overflow record that does not name the task of {unit}")
    return words


def _number(name: str, value: object) -> int:
    """Return a word of JSON: an integer, or hexadecimal text."""
    number = value
    if isinstance(value, str):
        try:
            number = int(value, 16)
        except ValueError:
            number = None
    if type(number) is not int or not 0 <= number < 2**64:
        raise UnreadableTensor(f"is an overflow record whose {name:.40} is not a number of 64 bits")
    return number


def _word_json(name: str, word: Word) -> Any:
    if isinstance(word, tuple):
        return list(word)
    return hex(word) if name in _ADDRESSES else word
