"""Decoding a chunk of a packed array: its checksum, its streams of LZ4 and its bits, as one entry.

Importing this module imports numba. It is compiled into object code by
`workers.arrays.compiled.kernel_entries`, and calls functions of libraries at addresses that it is given. A
chunk may have been written by anybody: all places and lengths are checked before anything is read from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, register_jitable

from workers.arrays.compiled.chunk_plan import (
    BAD_CHECKSUM,
    BEHIND_END,
    BLOCKS,
    CHECKSUM,
    CHUNK,
    COLUMNS,
    COLUMNS_AT,
    DAMAGED_STREAM,
    DECODED,
    END,
    ENDS_EARLY,
    HEADER_NBYTES,
    IN_HEADER,
    INFLATE,
    ITEMSIZE,
    LENGTH_NBYTES,
    PLANES,
    STREAM_NBYTES,
    TARGET,
    TOO_LONG,
    UNSHUFFLE,
)


@register_jitable
def decode(plan: Any) -> int:
    """Decode a chunk; return what became of it. For both see `workers.arrays.compiled.chunk_plan`."""
    nbytes = plan[END] - plan[CHUNK]
    if _checksum(plan[CHECKSUM], plan[CHUNK], nbytes) != _unsigned(plan[END]):
        return BAD_CHECKSUM
    if nbytes < HEADER_NBYTES + plan[BLOCKS] * LENGTH_NBYTES:
        return ENDS_EARLY
    for block in range(plan[BLOCKS]):
        outcome = _decode_block(plan, block)
        if outcome != DECODED:
            return outcome
    return DECODED


@register_jitable
def _decode_block(plan: Any, block: int) -> int:
    chunk, itemsize = plan[CHUNK], plan[ITEMSIZE]
    end = plan[END] - chunk
    at = _unsigned(chunk + HEADER_NBYTES + block * LENGTH_NBYTES)
    if at < HEADER_NBYTES + plan[BLOCKS] * LENGTH_NBYTES:
        return IN_HEADER
    for column in range(itemsize):
        begin = at + LENGTH_NBYTES
        if begin > end:
            return BEHIND_END
        length = _unsigned(chunk + at)
        at = begin + length
        if length > STREAM_NBYTES or at > end:
            return TOO_LONG
        planes = chunk + begin  # as they are, if LZ4 did not make them smaller
        if length < STREAM_NBYTES:
            planes = plan[PLANES] + column * STREAM_NBYTES
            if _inflate(plan[INFLATE], chunk + begin, planes, length, STREAM_NBYTES) != STREAM_NBYTES:
                return DAMAGED_STREAM
        plan[COLUMNS + column] = planes
    target = plan[TARGET] + block * STREAM_NBYTES * itemsize
    _unshuffle(plan[UNSHUFFLE], plan[COLUMNS_AT], STREAM_NBYTES, target)
    return DECODED


def _define_unsigned(_context: Any, _address: Any) -> Any:
    """Return the four bytes at an address as a number without a sign."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        word = builder.load(builder.inttoptr(values[0], ir.IntType(32).as_pointer()), align=1)
        return builder.zext(word, ir.IntType(64))

    return types.int64(types.int64), generate


def _define_checksum(_context: Any, _function: Any, _address: Any, _nbytes: Any) -> Any:
    """Call `crc32c_value`; its result has no sign."""
    return types.int64(*[types.int64] * 3), _call([64, 64])


def _define_inflate(
    _context: Any, _function: Any, _source: Any, _target: Any, _nbytes: Any, _capacity: Any
) -> Any:
    """Call `LZ4_decompress_safe`; what is not the expected number of bytes is an error."""
    return types.int64(*[types.int64] * 5), _call([64, 64, 32, 32])


def _define_unshuffle(_context: Any, _function: Any, _columns: Any, _size: Any, _target: Any) -> Any:
    """Call an entry of `workers.arrays.compiled.bitshuffle_code`: two addresses come first, unused."""
    return types.int64(*[types.int64] * 4), _call([64, 64, 64], unused=2)


def _call(widths: list[int], unused: int = 0) -> Callable[..., Any]:
    """Return an LLVM code generator for calls to a function at an address that returns 32 bits.

    Args:
        widths: the bits of its arguments.
        unused: how many null pointers come before them.
    """
    kinds = [ir.IntType(width) for width in [64] * unused + widths]

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), kinds)
        function = builder.inttoptr(values[0], kind.as_pointer())
        given = [ir.Constant(ir.IntType(64), 0)] * unused + list(values[1:])
        narrowed = [
            value if width.width == 64 else builder.trunc(value, width)
            for value, width in zip(given, kinds, strict=True)
        ]
        return builder.zext(builder.call(function, narrowed), ir.IntType(64))

    return generate


_unsigned: Any = intrinsic(_define_unsigned)
_checksum: Any = intrinsic(_define_checksum)
_inflate: Any = intrinsic(_define_inflate)
_unshuffle: Any = intrinsic(_define_unshuffle)
