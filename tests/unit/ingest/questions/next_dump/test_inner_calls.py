"""Calls inside of modules, which msProbe dumps with them."""

import pytest

import ingest
from ingest.questions.next_dump.suspicion import (
    InnerCalls,
    OperatorId,
    Suspect,
    Suspicion,
    inner_calls,
    without_wrappers,
)
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly


@pytest.fixture(scope="module")
def inner(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> InnerCalls:
    store = tmp_path_factory.mktemp("inner") / "s.zarr"
    ingest_directly(dumps["msprobe-26.2.0-pytorch-cpu"] / "tensor-mix", store)
    opened = ingest.open_store(store)
    key = next(key for key in opened.keys if key.step is not None)
    return inner_calls(opened, (key.rank, key.step or 0))


def choice(*names: str) -> Suspicion:
    suspects = tuple(Suspect(OperatorId("", "", name.rpartition(".")[0], name), 1.0, "") for name in names)
    return Suspicion(suspects, (0,), (0,), "")


def a_module(inner: InnerCalls) -> tuple[str, str]:
    """Return a module of the dump, and a call of PyTorch in it."""
    calls = ((module, call.op_name) for module, calls in sorted(inner.items()) for call in sorted(calls))
    return next((module, call) for module, call in calls if call.startswith("Functional."))


def test_modules_around_a_chosen_call_are_left_out(inner: InnerCalls) -> None:
    module, call = a_module(inner)
    kept = without_wrappers(choice(module, call), inner)
    assert [suspect.operator.op_name for suspect in kept.suspects] == [call]
    alone = without_wrappers(choice(module), inner)
    assert [suspect.operator.op_name for suspect in alone.suspects] == [module]
