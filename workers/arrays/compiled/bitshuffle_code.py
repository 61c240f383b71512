"""The shuffles of Blosc as LLVM code in vectors, which numba cannot be made to write.

Elements become planes of bits: plane `8 * byte + bit` has that bit of each element, eight elements to a
byte, the first in the lowest bit. The format is that of c-blosc 1.21, `blosc/bitshuffle-generic.c`. The Blosc
of numcodecs does it in vectors of 16 bytes (SSE2), and takes more than half of its time for it.

The code takes 64 elements at a time. It gathers one byte of each, transposes 8x8 bits in each of eight words
(Warren, "Hacker's Delight", 2nd ed., section 7-3), and gathers the words of the planes. The way back has the
same steps in the other order. LLVM turns vectors of 64 bytes into what the processor has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import binding, ir  # type: ignore[import-untyped]

from workers.arrays.compiled.chunk_plan import ITEMSIZES, WORD_NBYTES

#: The number of elements must be a multiple of this.
LANES: Final = 64
#: Bytes that stay in the L1 cache while each byte of their elements is gathered.
_TILE_NBYTES: Final = 16 * 1024
#: Steps of the transposition: how far bits move, and which of eight times eight.
_SWAPS: Final = ((7, 0x00AA_00AA_00AA_00AA), (14, 0x0000_CCCC_0000_CCCC), (28, 0x0000_0000_F0F0_F0F0))

_BYTE, _INT, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BYTES, _WORDS = ir.VectorType(_BYTE, LANES), ir.VectorType(_WORD, 8)


def symbol(itemsize: int, *, back: bool = False) -> str:
    """Return the name in object code of the entry for elements of `itemsize` bytes; `back`: from planes."""
    return f"dump_ingest_bit{'un' if back else ''}shuffle_{itemsize}"


def byte_symbol(itemsize: int) -> str:
    """Return the name in object code of the entry that shuffles whole bytes."""
    return f"dump_ingest_byteshuffle_{itemsize}"


def compile_entries(machine: Any) -> bytes:
    """Return object code of the entries for a target machine of llvmlite.

    Each takes the address of the elements, their number, and the address of as many bytes for the planes. On
    the way back, the first is that of a table, which has the address of the planes of each byte. Two
    addresses that it does not use come before: see `workers.arrays.compiled.kernel_objects`. It returns 0.
    """
    module = ir.Module("bitshuffle")
    module.triple = machine.triple
    for itemsize in ITEMSIZES:
        _define_of_bytes(module, itemsize)
        _define(module, itemsize)
        _define_back(module, itemsize)
    parsed = binding.parse_assembly(str(module))
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(parsed, builder)
    code: bytes = machine.emit_object(parsed)
    return code


def _function(module: ir.Module, name: str) -> tuple[ir.IRBuilder, list[ir.Value]]:
    """Begin an entry; return its code, and the two addresses around the number of elements."""
    pointer = _BYTE.as_pointer()
    function = ir.Function(module, ir.FunctionType(_INT, [pointer, pointer, _WORD, _WORD, _WORD]), name)
    return ir.IRBuilder(function.append_basic_block()), list(function.args[2:])


def _define_of_bytes(module: ir.Module, itemsize: int) -> None:
    """Define the shuffle of whole bytes: the first of each element, then the second, and so on."""
    code, (source, size, target) = _function(module, byte_symbol(itemsize))
    at, end = _loop(code, _word(0), size, LANES)
    elements = _load(code, code.add(source, code.mul(at, _word(itemsize))), LANES * itemsize)
    for byte in range(itemsize):
        column = _picked(code, elements, range(byte, LANES * itemsize, itemsize))
        _store(code, column, code.add(target, code.add(code.mul(size, _word(byte)), at)))
    end()
    code.ret(ir.Constant(_INT, 0))


def _define(module: ir.Module, itemsize: int) -> None:
    code, (source, size, target) = _function(module, symbol(itemsize))
    plane_nbytes = code.lshr(size, _word(3))
    tile = _TILE_NBYTES // itemsize
    start, end_tiles = _loop(code, _word(0), size, tile)
    stop = code.add(start, _word(tile))
    stop = code.select(code.icmp_unsigned("<", stop, size), stop, size)
    for byte in range(itemsize):
        at, end = _loop(code, start, stop, LANES)
        elements = _load(code, code.add(source, code.mul(at, _word(itemsize))), LANES * itemsize)
        planes = _transposed(code, _picked(code, elements, range(byte, LANES * itemsize, itemsize)))
        place = code.add(target, code.add(code.mul(plane_nbytes, _word(8 * byte)), code.lshr(at, _word(3))))
        for bit in range(8):
            pointer = code.inttoptr(place, _WORD.as_pointer())
            code.store(code.extract_element(planes, ir.Constant(_INT, bit)), pointer, align=1)
            place = code.add(place, plane_nbytes)
        end()
    end_tiles()
    code.ret(ir.Constant(_INT, 0))


def _define_back(module: ir.Module, itemsize: int) -> None:
    code, (table, size, target) = _function(module, symbol(itemsize, back=True))
    places = [_load_word(code, code.add(table, _word(WORD_NBYTES * byte))) for byte in range(itemsize)]
    tile = _TILE_NBYTES // itemsize
    # Byte after byte, so that only eight planes are read at once: they share a set of the L1 cache.
    kept = code.alloca(ir.ArrayType(_BYTE, _TILE_NBYTES))
    kept.align = LANES
    columns = code.ptrtoint(kept, _WORD)
    plane_nbytes = code.lshr(size, _word(3))
    start, end_tiles = _loop(code, _word(0), size, tile)
    stop = code.add(start, _word(tile))
    stop = code.select(code.icmp_unsigned("<", stop, size), stop, size)
    for byte in range(itemsize):
        at, end = _loop(code, start, stop, LANES)
        place = code.add(places[byte], code.lshr(at, _word(3)))
        planes = ir.Constant(_WORDS, None)
        for bit in range(8):
            planes = code.insert_element(planes, _load_word(code, place), ir.Constant(_INT, bit))
            place = code.add(place, plane_nbytes)
        column = code.add(columns, code.add(_word(byte * tile), code.sub(at, start)))
        _store(code, _transposed_back(code, planes), column)
        end()
    at, end = _loop(code, start, stop, LANES)
    place = code.add(columns, code.sub(at, start))
    parts = [_load(code, code.add(place, _word(byte * tile)), LANES) for byte in range(itemsize)]
    _store(code, _interleaved(code, parts), code.add(target, code.mul(at, _word(itemsize))))
    end()
    end_tiles()
    code.ret(ir.Constant(_INT, 0))


def _interleaved(code: ir.IRBuilder, columns: list[ir.Value]) -> ir.Value:
    """Return elements of their bytes: of each column of 64 the first, then the second, and so on."""
    width = 8
    while len(columns) > 1:
        kind = ir.VectorType(ir.IntType(width), LANES)
        mask = [place for lane in range(LANES) for place in (lane, LANES + lane)]
        places = ir.Constant(ir.VectorType(_INT, 2 * LANES), mask)
        parts = [code.bitcast(column, kind) for column in columns]
        columns = [
            code.shuffle_vector(low, high, places) for low, high in zip(parts[::2], parts[1::2], strict=True)
        ]
        width *= 2
    return columns[0]


def _transposed_back(code: ir.IRBuilder, planes: ir.Value) -> ir.Value:
    by_word = [8 * bit + word for word in range(8) for bit in range(8)]
    words = code.bitcast(_picked(code, code.bitcast(planes, _BYTES), by_word), _WORDS)
    return code.bitcast(_swapped(code, words), _BYTES)


def _transposed(code: ir.IRBuilder, column: ir.Value) -> ir.Value:
    """Return of 64 bytes the words of their bits: that of the lowest bits first."""
    words = _swapped(code, code.bitcast(column, _WORDS))
    by_bit = [8 * word + bit for bit in range(8) for word in range(8)]
    return code.bitcast(_picked(code, code.bitcast(words, _BYTES), by_bit), _WORDS)


def _swapped(code: ir.IRBuilder, words: ir.Value) -> ir.Value:
    """Return words with rows and columns of their 8x8 bits exchanged."""
    for distance, mask in _SWAPS:
        shift = ir.Constant(_WORDS, [distance] * 8)
        moved = code.and_(code.xor(words, code.lshr(words, shift)), ir.Constant(_WORDS, [mask] * 8))
        words = code.xor(code.xor(words, moved), code.shl(moved, shift))
    return words


def _picked(code: ir.IRBuilder, vector: ir.Value, places: Any) -> ir.Value:
    mask = ir.Constant(ir.VectorType(_INT, LANES), list(places))
    return code.shuffle_vector(vector, ir.Constant(vector.type, None), mask)


def _load(code: ir.IRBuilder, place: ir.Value, nbytes: int) -> ir.Value:
    return code.load(code.inttoptr(place, ir.VectorType(_BYTE, nbytes).as_pointer()), align=1)


def _load_word(code: ir.IRBuilder, place: ir.Value) -> ir.Value:
    return code.load(code.inttoptr(place, _WORD.as_pointer()), align=1)


def _store(code: ir.IRBuilder, vector: ir.Value, place: ir.Value) -> None:
    code.store(vector, code.inttoptr(place, vector.type.as_pointer()), align=1)


def _loop(
    code: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int
) -> tuple[ir.Value, Callable[[], None]]:
    """Begin a loop; return its counter, and what ends it."""
    before, head = code.block, code.append_basic_block()
    body, after = code.append_basic_block(), code.append_basic_block()
    code.branch(head)
    code.position_at_end(head)
    counter = code.phi(_WORD)
    counter.add_incoming(start, before)
    code.cbranch(code.icmp_unsigned("<", counter, stop), body, after)
    code.position_at_end(body)

    def end() -> None:
        counter.add_incoming(code.add(counter, _word(step)), code.block)
        code.branch(head)
        code.position_at_end(after)

    return counter, end


def _word(value: int) -> ir.Constant:
    return ir.Constant(_WORD, value)
