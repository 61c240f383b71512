"""Planes of bits: those of every element, in the order of Blosc, for what the processor has and for less."""

import ctypes

import numpy as np
import pytest
from llvmlite import binding  # type: ignore[import-untyped]

from workers.arrays.compiled import bitshuffle_code, kernels
from workers.arrays.compiled.bitshuffle_code import LANES


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
