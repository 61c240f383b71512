"""The entries of object code: functions of addresses and numbers around the loops of `kernel_loops.py`.

Importing this module imports numba.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.core import config
from numba.core.registry import cpu_target

from workers.arrays.compiled import (
    bitshuffle_code,
    chunk_loops,
    chunk_plan,
    comparison_loops,
    kernel_loops,
    kernel_target,
    marginal_loops,
)

carray: Any = vars(numba)["carray"]  # the type stubs of numba lack it


class MadeEntry(NamedTuple):
    """An entry that was compiled."""

    name: str
    symbol: str
    """Its name in the object code."""
    arguments: int
    code: bytes


def compile_all() -> list[MadeEntry]:
    """Compile the entries for each type of element."""
    # The target is set first, because numba reads it when it makes the first dispatcher. Perhaps it was
    # imported before.
    kernel_target.use_target()
    if os.environ.get("NUMBA_CPU_NAME") != config.CPU_NAME:  # type: ignore[attr-defined]
        config.reload_config()  # type: ignore[no-untyped-call]
    for loop, fastmath in kernel_loops.LOOPS:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
        loop.__globals__[loop.__name__] = numba.njit(**options)(loop)
    return [
        *(_made(f"f{size}", _floats(size), "anaa") for size in (4, 8)),
        *(_made(f"{kind}{size}", _integers(kind, size), "ana") for kind in "iu" for size in (2, 4, 8)),
        _made("codes", _codes(), "anaaa"),
        _made("widen_half", _widen_half(), "ana"),
        *(_made(f"counted_f{size}", _counted_floats(size), "anaaaa") for size in (4, 8)),
        *(_made(f"counted_many_f{size}", _counted_many(size), "anaaaaaaaa") for size in (4, 8)),
        *(_made(f"marginals_f{size}", _marginals(size), "anaan") for size in (4, 8)),
        *(_made(f"marginals_table_f{size}", _marginals_table(size), "aa") for size in (4, 8)),
        _made("histogram_f4", _histogram_f4(), "ana"),
        _made("histogram_f8", _histogram_f8(), "anaa"),
        _made("histogram_sparse", _histogram_sparse(), "aanna"),
        *(_made(f"compare_f{a}_f{b}", _compared(a, b), "aaaan") for a in (4, 8) for b in (4, 8)),
        *_bitshuffles(),
        _made("decode_chunk", _decode_chunk(), "a"),
    ]


def _made(name: str, function: Callable[..., None], arguments: str) -> MadeEntry:
    """Compile an entry; its arguments are addresses (a) and numbers of elements (n)."""
    kinds = {"a": types.voidptr, "n": types.intp}
    # The errors that may not happen are returned, and not raised: see `kernel_objects`.
    options: Any = {
        "nogil": True,
        "error_model": "numpy",
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    dispatcher = numba.njit(types.void(*[kinds[kind] for kind in arguments]), **options)(function)
    overload: Any = next(iter(dispatcher.overloads.values()))
    library = overload.library
    code = library.codegen._tm.emit_object(library._final_module)  # noqa: SLF001  (numba has no other way)
    return MadeEntry(name, overload.fndesc.llvm_func_name, len(arguments), code)


def _bitshuffles() -> Iterator[MadeEntry]:
    """Yield the shuffles of bits, their inverses, and those of bytes; the first has the code of all."""
    code = bitshuffle_code.compile_entries(cpu_target.target_context.codegen()._tm)  # noqa: SLF001  (as in `_made`)
    for size in chunk_plan.ITEMSIZES:
        yield MadeEntry(f"bitshuffle{size}", bitshuffle_code.symbol(size), 3, code)
        yield MadeEntry(f"bitunshuffle{size}", bitshuffle_code.symbol(size, back=True), 3, b"")
        yield MadeEntry(f"byteshuffle{size}", bitshuffle_code.byte_symbol(size), 3, b"")
        code = b""


def _floats(size: int) -> Callable[..., None]:
    floats, signed, unsigned = (np.dtype(f"{kind}{size}").type for kind in "fiu")
    run, places, wide = kernel_loops.accumulate_floats, len(kernel_loops.PLACES), kernel_loops.SCRATCH
    narrow = wide * 8 // size

    def entry(x: Any, n: int, scratch: Any, state: Any) -> None:
        run(
            (carray(x, (n,), floats), carray(x, (n,), signed), carray(x, (n,), unsigned)),
            (
                carray(scratch, (narrow,), floats),
                carray(scratch, (narrow,), signed),
                carray(scratch, (narrow,), unsigned),
                carray(scratch, (wide,), np.float64),
            ),
            carray(state, (places,), np.float64),
        )

    return entry


def _counted_floats(size: int) -> Callable[..., None]:
    """Return an entry that adds a block to statistics and histogram while it is in the L1 cache."""
    add, places = _adder(size), len(kernel_loops.PLACES)

    def entry(x: Any, n: int, scratch: Any, state: Any, bin_of: Any, tables: Any) -> None:  # noqa: PLR0917  (addresses)
        add(x, 0, n, scratch, carray(state, (places,), np.float64), bin_of, tables)

    return entry


def _adder(size: int) -> Any:
    """Return what adds the elements `start` to `end` at an address to a state and to tables."""
    floats, signed, unsigned = (np.dtype(f"{kind}{size}").type for kind in "fiu")
    run, wide = kernel_loops.accumulate_floats, kernel_loops.SCRATCH
    narrow, step = wide * 8 // size, kernel_loops.BLOCK
    count, shape = _counter(size), (kernel_loops.TABLES, kernel_loops.WIDTH)

    @numba.njit(error_model="numpy")
    def add(x: Any, start: int, end: int, scratch: Any, state: Any, bin_of: Any, tables: Any) -> None:  # noqa: PLR0917
        x_floats, x_signed, x_unsigned = (
            carray(x, (end,), floats),
            carray(x, (end,), signed),
            carray(x, (end,), unsigned),
        )
        memory = (
            carray(scratch, (narrow,), floats),
            carray(scratch, (narrow,), signed),
            carray(scratch, (narrow,), unsigned),
            carray(scratch, (wide,), np.float64),
        )
        bins, counts = carray(bin_of, (4096,), np.uint16), carray(tables, shape, np.uint32)
        for begin in range(start, end, step):
            stop = min(begin + step, end)
            run((x_floats[begin:stop], x_signed[begin:stop], x_unsigned[begin:stop]), memory, state)
            count(x_signed[begin:stop], bins, counts)

    return add


def _counted_many(size: int) -> Callable[..., None]:
    """Return an entry for `n` tensors that lie one after the other, each of which `ends` before a place.

    It adds each to a state of its own, and writes its histogram to `out`, (elements, 3), up to `out_ends`.
    """
    add, places = _adder(size), len(kernel_loops.PLACES)
    join, write = kernel_loops.add_tables, kernel_loops.write_sparse
    shape, last = (kernel_loops.TABLES, kernel_loops.WIDTH), kernel_loops.LAST + 1
    bins, pos_inf, neg_inf = 2 * kernel_loops.BINS, kernel_loops.POS_INF, kernel_loops.NEG_INF

    def entry(  # noqa: PLR0917  (addresses)
        x: Any,
        n: int,
        ends: Any,
        scratch: Any,
        states: Any,
        bin_of: Any,
        tables: Any,
        totals: Any,
        out: Any,
        out_ends: Any,
    ) -> None:
        all_ends, all_states = carray(ends, (n,), np.int64), carray(states, (n, places), np.float64)
        counts, written_ends = carray(totals, (bins,), np.int64), carray(out_ends, (n,), np.int64)
        start = written = 0
        for number in range(n):
            state = all_states[number]
            add(x, start, all_ends[number], scratch, state, bin_of, tables)
            start = all_ends[number]
            join(carray(tables, shape, np.uint32), counts)
            # Behind the histograms that are written there is room for another one, and its length.
            rows = carray(out, (written + last + 1, 3), np.int64)[written:]
            write(counts, int(state[pos_inf]), int(state[neg_inf]), rows)
            written += rows[last, 0]
            written_ends[number] = written

    return entry


def _counter(size: int) -> Any:
    if size == 8:
        return kernel_loops.count_float64
    run: Any = kernel_loops.count_float32

    @numba.njit(error_model="numpy")
    def count(bits: Any, _bin_of: Any, tables: Any) -> None:
        run(bits, tables)

    return count


def _marginals(size: int) -> Callable[..., None]:
    floats, signed = (np.dtype(f"{kind}{size}").type for kind in "fi")
    begin, run, fields = marginal_loops.begin, marginal_loops.add_piece, marginal_loops.PLAN_FIELDS
    sums_of, total = _sums_of(signed), marginal_loops.TOTAL

    def entry(x: Any, n: int, plan: Any, memory: Any, start: int) -> None:
        given, own = carray(plan, (fields,), np.int64), carray(memory, (fields,), np.int64)
        if start == 0:
            own[total] = given[total]  # where the sums are follows from it
            begin(given, own, sums_of(memory))
        run((carray(x, (n,), floats), carray(x, (n,), signed)), start, own, sums_of(memory))

    return entry


def _marginals_table(size: int) -> Callable[..., None]:
    floats, signed = (np.dtype(f"{kind}{size}").type for kind in "fi")
    run, fields, sums_of = marginal_loops.write_table, marginal_loops.PLAN_FIELDS, _sums_of(signed)
    first, wide = fields * 8 // size, 8 // size

    def entry(memory: Any, out: Any) -> None:
        plan = carray(memory, (fields,), np.int64)
        total, wanted = plan[marginal_loops.TOTAL], plan[marginal_loops.WANTED]
        begin = first + 2 * wide * total
        magnitudes = carray(memory, (begin + total,), floats)[begin:]
        run(plan, sums_of(memory), magnitudes, carray(out, (3, wanted), np.float32))

    return entry


def _sums_of(signed: Any) -> Any:
    """Return what finds the sums in the memory of a `RunningMarginals`: they are after the plan."""
    fields, wide = marginal_loops.PLAN_FIELDS, 8 // np.dtype(signed).itemsize

    @numba.njit(error_model="numpy")
    def sums_of(memory: Any) -> Any:
        total = carray(memory, (fields,), np.int64)[marginal_loops.TOTAL]
        moments = carray(memory, (fields + 2 * total,), np.float64)
        begin = wide * (fields + 2 * total)
        largest = carray(memory, (begin + total,), signed)[begin:]
        return moments[fields : fields + total], moments[fields + total :], largest

    return sums_of


def _integers(kind: str, size: int) -> Callable[..., None]:
    integers, signed = np.dtype(f"{kind}{size}").type, np.dtype(f"i{size}").type
    run, places = kernel_loops.accumulate_integers, len(kernel_loops.PLACES)

    def entry(x: Any, n: int, state: Any) -> None:
        run(carray(x, (n,), integers), carray(x, (n,), signed), carray(state, (places,), np.float64))

    return entry


def _codes() -> Callable[..., None]:
    run, places = kernel_loops.accumulate_codes, len(kernel_loops.PLACES)

    def entry(x: Any, n: int, values: Any, tables: Any, state: Any) -> None:
        run(
            carray(x, (n,), np.uint8),
            carray(values, (256,), np.float64),
            carray(tables, (4, 256), np.int64),
            carray(state, (places,), np.float64),
        )

    return entry


def _widen_half() -> Callable[..., None]:
    run = kernel_loops.widen_half

    def entry(half: Any, n: int, out: Any) -> None:
        run(carray(half, (n,), np.uint16), carray(out, (n,), np.float32), carray(out, (n,), np.int32))

    return entry


def _histogram_f4() -> Callable[..., None]:
    run, shape = kernel_loops.count_float32, (kernel_loops.TABLES, kernel_loops.WIDTH)

    def entry(x: Any, n: int, tables: Any) -> None:
        run(carray(x, (n,), np.int32), carray(tables, shape, np.uint32))

    return entry


def _histogram_f8() -> Callable[..., None]:
    run, shape = kernel_loops.count_float64, (kernel_loops.TABLES, kernel_loops.WIDTH)

    def entry(x: Any, n: int, bin_of: Any, tables: Any) -> None:
        run(carray(x, (n,), np.int64), carray(bin_of, (4096,), np.uint16), carray(tables, shape, np.uint32))

    return entry


def _histogram_sparse() -> Callable[..., None]:
    add, run = kernel_loops.add_tables, kernel_loops.write_sparse
    shape = (kernel_loops.TABLES, kernel_loops.WIDTH)
    bins, places = 2 * kernel_loops.BINS, (kernel_loops.LAST + 2, 3)

    def entry(tables: Any, totals: Any, pos_inf: int, neg_inf: int, out: Any) -> None:
        counts = carray(totals, (bins,), np.int64)
        add(carray(tables, shape, np.uint32), counts)
        run(counts, pos_inf, neg_inf, carray(out, places, np.int64))

    return entry


def _compared(size_a: int, size_b: int) -> Callable[..., None]:
    kind_a, kind_b = (np.dtype(f"f{size}").type for size in (size_a, size_b))
    run, places, shape = (
        comparison_loops.run,
        len(comparison_loops.PLACES),
        (4, comparison_loops.BLOCK),
    )

    def entry(a: Any, b: Any, state: Any, scratch: Any, n: int) -> None:
        run(
            carray(a, (n,), kind_a),
            carray(b, (n,), kind_b),
            carray(state, (places,), np.float64),
            carray(scratch, shape, np.float64),
            carray(scratch, shape, np.int64),
        )

    return entry


def _decode_chunk() -> Callable[..., None]:
    run, fields, outcome = chunk_loops.decode, chunk_plan.FIELDS, chunk_plan.OUTCOME

    def entry(plan: Any) -> None:
        words = carray(plan, (fields,), np.int64)
        words[outcome] = run(words)

    return entry
