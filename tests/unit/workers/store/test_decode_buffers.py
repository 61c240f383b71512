"""Memory is lent again when the last view of it is gone, and never before."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workers.store.decode_buffers import DecodeBuffers


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_is_used_again_after_its_last_view() -> None:
    buffers = DecodeBuffers()
    first = buffers.lend(1000)
    place = address(first)
    assert len(first) == 1000
    del first
    assert buffers.free_nbytes == 1024
    again = buffers.lend(513)
    assert (address(again), len(again), buffers.free_nbytes) == (place, 513, 0)


@pytest.mark.parametrize(
    "view",
    [
        lambda lent: lent[10:20],
        lambda lent: lent[10:20].toreadonly()[1:],
        lambda lent: memoryview(lent[10:20].obj)[3:],
        lambda lent: np.frombuffer(lent[8:24], "<f4")[1:],
        lambda lent: np.frombuffer(lent, np.uint8).reshape(8, 8).T.view(np.int8)[2:],
    ],
    ids=["slice", "read-only", "of its object", "array", "array of another shape"],
)
def test_memory_with_a_view_of_any_kind_is_not_lent_again(view: Callable[[memoryview], Any]) -> None:
    buffers = DecodeBuffers()
    lent = buffers.lend(64)
    lent[:] = bytes(range(64))
    left = view(lent)
    content = bytes(left)
    del lent
    other = buffers.lend(64)
    other[:] = b"x" * 64
    assert bytes(left) == content
    del left
    assert buffers.free_nbytes == 64


def test_sizes_do_not_share_memory_and_nothing_is_nothing() -> None:
    buffers = DecodeBuffers()
    small, large = buffers.lend(100), buffers.lend(1000)
    del small
    assert (len(buffers.lend(0)), len(buffers.lend(129)), buffers.free_nbytes) == (0, 129, 128 + 256 + 1)
    del large
    assert buffers.free_nbytes == 128 + 256 + 1 + 1024


def test_views_outlive_what_lent_them() -> None:
    buffers = DecodeBuffers()
    lent = buffers.lend(8)
    lent[:] = b"contents"
    del buffers
    gc.collect()
    assert bytes(lent) == b"contents"


def test_threads_never_hold_the_same_memory() -> None:
    buffers = DecodeBuffers()
    mixed: list[int] = []

    def use(number: int) -> None:
        for _ in range(300):
            lent = buffers.lend(4096)
            lent[:] = bytes([number]) * 4096
            if bytes(lent) != bytes([number]) * 4096:
                mixed.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed
    assert buffers.free_nbytes <= 4 * 4096
