"""Tensors that changed although nobody wrote them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import ingest
from tests.dump_data_writer import Tensor, dump_data
from tests.guide_configs import WATCHER, acl
from tests.pt_files import pt_bytes
from tests.stores import DumpLibrary, MadeDump, MadeRun, ingest_and_open, ingest_directly, numbers


def opened(made: MadeDump, store: Path) -> ingest.DumpStore:
    return ingest_and_open(made.root, store)


def test_a_watched_output_that_changed_was_trampled_in_between(made: MadeDump, store: Path) -> None:
    """As in the watch mode: C is dumped when it has run, then again after A and after B."""
    run = MadeRun(made)
    for name, value in (
        ("C.watched", 1),
        ("A.first", 8),
        ("C.watched", 1),
        ("B.second", 9),
        ("C.watched", 5),
    ):
        run.op(name, (), [numbers(value, 2)])
    (found,) = ingest.trampled(opened(made, store))
    assert (found.name, found.later) == ("C.watched.output.0#1", "C.watched.output.0#2")
    assert (found.kind, found.between) == ("trampled, or run again", ("B (second)",))
    assert found.difference is not None
    assert (found.difference.elements, found.difference.first[0].index) == (1, (0,))
    assert json.loads(json.dumps(found.to_dict()))["difference"]["elements"] == 1


def test_the_watch_mode_of_acl_and_torchair_names_the_operator_that_tramples(
    tmp_path: Path, store: Path
) -> None:
    """DumpData of C when it has run, then again when A and B, which are not watched, have run."""
    place = tmp_path / "dump/20260101000000/0/net/1/0"
    place.mkdir(parents=True)
    files = (("Conv.C", 1), ("Add.D", 7), ("Conv.C", 1), ("Mul.E", 8), ("Conv.C", 5))
    for index, (name, value) in enumerate(files):
        content = dump_data([], [Tensor(numbers(value, 2).tobytes(), 1, (2,))], op_name=name.encode())
        (place / f"{name}.{index}.7.{1_700_000_000_000_000 + index}").write_bytes(content)
    (tmp_path / "dump/acl.json").write_text(acl(WATCHER, dump_list=[{"watcher_nodes": ["C", "D", "E"]}]))
    ingest_directly(tmp_path / "dump", store)
    (found,) = ingest.trampled(ingest.open_store(store))
    assert (found.name, found.later) == ("Conv.C.output.0#1", "Conv.C.output.0#2")
    assert (found.kind, found.between) == ("trampled", ("Mul (E)",))


def test_inputs_tell_that_the_operator_did_not_run_again(made: MadeDump, store: Path) -> None:
    run = MadeRun(made)
    run.op("C.watched", [numbers(7)], [numbers(1)])
    run.op("B.second", [numbers(1)], [numbers(9)])
    run.op("C.watched", (), [numbers(5)])
    (found,) = ingest.trampled(opened(made, store))
    assert (found.kind, found.between) == ("trampled", ("B (second)",))


def test_an_operator_that_ran_again_may_write_something_else(made: MadeDump, store: Path) -> None:
    """A loop: its inputs were dumped as often as its outputs."""
    run = MadeRun(made)
    for value in (1, 2, 3):
        run.op("Add.loop", [numbers(value)], [numbers(value + 1)])
    assert ingest.trampled(opened(made, store)) == []


def test_real_loops_and_parameters_are_left_alone(dumps: DumpLibrary, store: Path) -> None:
    opened_store = ingest_and_open(dumps["mindspore-2.7.1-cpu-sync"] / "control-flow", store)
    assert max(tensor.occurrence for tensor in opened_store.tensors()) > 1
    assert ingest.trampled(opened_store, include_partial=True) == []


@pytest.mark.parametrize(("again", "kinds"), [(4.0, []), (5.0, ["not repeatable"])])
def test_what_is_computed_again_must_be_the_same(
    tmp_path: Path, store: Path, again: float, kinds: list[str]
) -> None:
    """SGLang's dumper tells the forward pass and its recomputation in the backward pass apart."""
    for index, (status, value) in enumerate((("original", 4.0), ("recompute", again)), 1):
        name = f"step=0___rank=0___dump_index={index}___name=hidden___recompute_status={status}.pt"
        path = tmp_path / "dump" / "dump_20260101_000000_000000" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pt_bytes(numbers(value, 1)))
    ingest_directly(tmp_path / "dump", store)
    assert [found.kind for found in ingest.trampled(ingest.open_store(store))] == kinds


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
