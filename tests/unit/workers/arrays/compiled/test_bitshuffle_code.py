"""Planes of bits: those of every element, in the order of Blosc, for what the processor has and for less."""

import ctypes

import numpy as np
import pytest
from llvmlite import binding  # type: ignore[import-untyped]

from workers.arrays.compiled import bitshuffle_code, kernels
from workers.arrays.compiled.bitshuffle_code import LANES
from workers.arrays.compiled.chunk_plan import ITEMSIZES


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """The objects, made now if `make setup` has not done it."""
    kernels.warm_up()


def planes_of(content: np.ndarray, itemsize: int) -> bytes:
    """Return what numpy makes of the definition."""
    columns = content.reshape(-1, itemsize).T
    return b"".join(
        np.packbits(column >> bit & 1, bitorder="little").tobytes() for column in columns for bit in range(8)
    )


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_the_way_back_takes_the_planes_of_each_byte_from_where_they_are(itemsize: int) -> None:
    size = 5 * LANES
    content = np.random.default_rng(itemsize).integers(0, 256, size * itemsize, np.uint8)
    # With a gap before each, so that none is aligned.
    planes = [
        np.frombuffer(b"gap" + planes_of(column.copy(), 1), np.uint8)[3:]
        for column in content.reshape(-1, itemsize).T
    ]
    places = np.array([kernels.address(each) for each in planes], np.int64)
    back = np.full(content.size + 1, 77, np.uint8)
    entries = kernels.entries()
    assert entries is not None
    entries[f"bitunshuffle{itemsize}"](kernels.address(places), size, kernels.address(back))
    assert back[:-1].tobytes() == content.tobytes()
    assert back[-1] == 77  # nothing is written behind them


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_bytes_are_those_of_the_definition(itemsize: int) -> None:
    content = np.random.default_rng(itemsize).integers(0, 256, 3 * LANES * itemsize, np.uint8)
    shuffled = np.full(content.size + 1, 77, np.uint8)
    entries = kernels.entries()
    assert entries is not None
    entries[f"byteshuffle{itemsize}"](kernels.address(content), 3 * LANES, kernels.address(shuffled))
    assert shuffled[:-1].tobytes() == content.reshape(-1, itemsize).T.tobytes()
    assert shuffled[-1] == 77  # nothing is written behind them


def test_a_processor_without_wide_vectors_gives_the_same() -> None:
    target = binding.Target.from_default_triple()
    code = bitshuffle_code.compile_entries(target.create_target_machine(cpu="", opt=1))
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target.create_target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    words = [ctypes.c_void_p] * 2 + [ctypes.c_ssize_t] * 3
    entry = ctypes.CFUNCTYPE(ctypes.c_int, *words)(engine.get_function_address(bitshuffle_code.symbol(4)))
    content = np.random.default_rng(4).integers(0, 256, 5 * LANES * 4, np.uint8)
    planes = np.empty_like(content)
    assert entry(None, None, content.ctypes.data, 5 * LANES, planes.ctypes.data) == 0
    assert planes.tobytes() == planes_of(content, 4)
