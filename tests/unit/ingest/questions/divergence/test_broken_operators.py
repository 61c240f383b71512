"""An operator that broke is named with two ranks, and no operator of a healthy run is."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingest.api import divergence, open_store
from tests.dumps import DumpLibrary
from tests.flips import flip
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly


@pytest.mark.parametrize("name", ["lenet-4rank", "nan-log-2rank", "nan-sqrt-2rank", "tinybert-2rank"])
def test_no_operator_of_a_healthy_run_is_named(name: str, dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps[name] / "dump", store)
    answer = divergence(open_store(store))
    assert (answer.broken, answer.agree) == ((), True)


def test_a_flipped_bit_names_the_operator(dump_copy: Callable[[str], Path], store: Path) -> None:
    """What read the output has unequal inputs, so it is not named."""
    dump = dump_copy("tinybert-2rank") / "dump"
    flip(dump, "Mul.Expand__Muls_Mul-op4.*.output.0.*", rank=1, step=1, element=3, bit=20)
    flip(dump, "Adam.Default_opt-Adam_Adam-op5.*.input.9.*", rank=1, step=1, element=3, bit=20)
    ingest_directly(dump, store)
    answer = divergence(open_store(store))
    (broken,) = answer.broken
    assert (broken.op_type, broken.op_name, broken.step) == ("Mul", "Expand__Muls_Mul-op4", 1)
    assert (broken.ranks, broken.has_majority, broken.inputs) == ((0, 1), False, 2)
    assert broken.bits is not None
    assert (broken.bits.elements, broken.bits.bits, broken.bits.first[0].bits) == (1, 1, (20,))
    assert not answer.agree
    assert answer.to_dict()["broken"][0]["bits"]["elements"] == 1


def test_with_three_ranks_a_majority_says_which(made: MadeDump, store: Path) -> None:
    for rank in range(3):
        for slot in range(2):
            made.add(np.arange(4.0), tensor_name("Mul.m", io="input", slot=slot), rank=rank)
        made.add(np.arange(4.0) + (rank == 1), tensor_name("Mul.m"), rank=rank)
    ingest_directly(made.root, store)
    (broken,) = divergence(open_store(store)).broken
    assert (broken.ranks, broken.others, broken.outputs) == ((1,), (0, 2), ("Mul.m.output.0",))


def test_what_differs_in_every_step_depends_on_more_than_its_inputs(made: MadeDump, store: Path) -> None:
    for step in range(3):
        for rank in range(2):
            made.add(np.arange(4.0), tensor_name("Stateful.s", io="input"), rank=rank, step=step)
            made.add(np.arange(4.0) + rank + step, tensor_name("Stateful.s"), rank=rank, step=step)
    ingest_directly(made.root, store)
    answer = divergence(open_store(store))
    assert answer.broken == ()
    assert any("they depend on more than their inputs (Stateful)" in note for note in answer.notes)


@pytest.mark.parametrize("op", ["Dropout.d", "AllReduce.a", "ApplyMomentum.m", "Parameter.p", "lt.mask"])
def test_what_may_differ_is_not_named(made: MadeDump, store: Path, op: str) -> None:
    for rank in range(2):
        made.add(np.arange(4.0), tensor_name(op, io="input"), rank=rank)
        made.add(np.arange(4.0) + rank, tensor_name(op), rank=rank)
    ingest_directly(made.root, store)
    assert divergence(open_store(store)).broken == ()
