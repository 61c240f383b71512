"""Tensors that are dumped several times in a step."""

import json
from pathlib import Path

import pytest

import ingest
from tests.dump_data_writer import Tensor, dump_data
from tests.dumps import DumpLibrary
from tests.guide_configs import WATCHER, acl
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.pt_files import pt_bytes


def opened(made: MadeDump, store: Path) -> ingest.DumpStore:
    ingest_directly(made.root, store)
    return ingest.open_store(store)


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
    ingest_directly(dumps["mindspore-2.7.1-cpu-sync"] / "control-flow", store)
    opened_store = ingest.open_store(store)
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
