"""Buffers of AOTInductor that changed between its kernels."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import ingest
from tests.made_runs import numbers
from tests.pipeline import ingest_directly
from tests.pt_files import pt_bytes

Saved = tuple[str, str, str, float]
"""`before` or `after`, kernel, buffer, value."""
HEALTHY: tuple[Saved, ...] = (
    ("before", "addmm_0", "arg0_1", 1),
    ("before", "addmm_0", "buf0", 77),  # memory that nothing has written yet
    ("after", "addmm_0", "arg0_1", 1),
    ("after", "addmm_0", "buf0", 2),
    ("before", "gelu_1", "buf0", 2),
    ("before", "gelu_1", "buf1", 88),
    ("after", "gelu_1", "buf0", 3),  # in place
    ("after", "gelu_1", "buf1", 4),
    ("before", "softmax_2", "buf0", 3),
    ("after", "softmax_2", "buf0", 3),
)


def trampled(events: Sequence[Saved], root: Path, *, with_times: bool = True) -> ingest.TrampledTensors:
    directory = root / "dump/tmp/aoti_torch"
    directory.mkdir(parents=True)
    for second, (when, kernel, buffer, value) in enumerate(events):
        path = directory / f"{when}_launch_{kernel}_{buffer}_cpu.pt"
        path.write_bytes(pt_bytes(numbers(value, 1)))
        if with_times:
            os.utime(path, (1_700_000_000 + second, 1_700_000_000 + second))
    if not with_times:
        for path in directory.iterdir():
            os.utime(path, (1_700_000_000, 1_700_000_000))
    ingest_directly(root / "dump", root / "s.zarr")
    return ingest.trampled(ingest.open_store(root / "s.zarr"))


def changed(place: int, value: float) -> list[Saved]:
    when, kernel, buffer, _ = HEALTHY[place]
    return [*HEALTHY[:place], (when, kernel, buffer, value), *HEALTHY[place + 1 :]]


def test_what_kernels_write_is_left_alone(tmp_path: Path) -> None:
    assert trampled(HEALTHY, tmp_path) == []


def test_a_buffer_that_differs_at_the_next_kernel_was_trampled(tmp_path: Path) -> None:
    events = changed(8, 5)
    (found,) = trampled([*events[:-1], ("after", "softmax_2", "buf0", 5)], tmp_path)
    assert found.kind == "trampled, or written by a kernel that was not dumped"
    assert (found.name, found.later) == ("gelu.gelu_1.output.buf0.-1", "softmax.softmax_2.before.buf0.-1")
    assert found.difference is not None
    assert found.difference.elements == 1


def test_an_input_of_the_model_must_not_change(tmp_path: Path) -> None:
    (found,) = trampled(changed(2, 9), tmp_path)
    assert (found.kind, found.between) == ("an input that was changed in place", ())
    assert found.later == "addmm.addmm_0.output.arg0_1.-1"


@pytest.mark.parametrize(("place", "value", "kinds"), [(8, 5, 0), (2, 9, 1)])
def test_without_the_order_of_kernels_only_single_kernels_are_judged(
    tmp_path: Path, place: int, value: float, kinds: int
) -> None:
    """A copy without times has its files in the order of their names: after comes before before."""
    assert len(trampled(changed(place, value), tmp_path, with_times=False)) == kinds
