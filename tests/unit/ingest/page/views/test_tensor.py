"""One tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingest.page.asking import Arguments, Asked, Links
from ingest.page.handlers import frame
from ingest.page.moment import Moment
from ingest.page.rendering import render
from ingest.page.views.tensor import SCREEN
from ingest.reader.dump_store import open_store
from tests.made_runs import Values
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all, run

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def asked(moment: Moment, name: str, **given: str) -> Asked:
    query = {"rank": "0", "step": "0", "name": name, **given}
    return Asked(moment, Arguments.of(query, SCREEN.parameters), Links("", "run.zarr"))


def moment_of(made: MadeDump, store: Path, values: Values) -> tuple[Moment, str]:
    made.add(values, tensor_name("Mul.m"))
    ingest_directly(made.root, store)
    return Moment.of(open_store(store)), "Mul.m.output.0"


@pytest.mark.parametrize(
    ("values", "has_histogram", "has_exponents"),
    [
        (np.arange(12, dtype="<f4").reshape(3, 4), True, True),
        (np.full(5, 3, "<i8"), True, True),
        (np.array([np.nan, np.inf], "<f4"), False, False),
        (np.array([1 + 2j, 4], "<c8"), False, True),
        (np.array([True, False]), True, False),
    ],
    ids=["floats", "constant", "nothing finite", "complex", "booleans"],
)
def test_values_have_pictures_as_far_as_they_have_an_order(
    made: MadeDump, store: Path, values: Values, *, has_histogram: bool, has_exponents: bool
) -> None:
    moment, name = moment_of(made, store, values)
    content = SCREEN.show(asked(moment, name))["content"]
    assert (content.histogram is not None, content.exponents is not None) == (has_histogram, has_exponents)


def test_values_that_were_left_out_are_said_to_be(made: MadeDump, store: Path) -> None:
    made.add(np.ones(3, "<f4"), tensor_name("Mul.m"))
    for plan in plan_all(made.root, store, leave_out_tensors="disk is full"):
        run(plan)
    shown = SCREEN.show(asked(Moment.of(open_store(store)), "Mul.m.output.0"))
    assert shown["content"] is None
    assert "disk is full" in shown["problem"]


NAME = "Mul.m[1].output.0"


@pytest.fixture
def sketched(made: MadeDump, store: Path) -> Moment:
    """A tensor with a column that stands out, and a small one; names hold signs of globs."""
    values = np.random.default_rng(0).standard_normal((300, 260)).astype("<f4")
    values[:, 100] *= 1e6
    made.add(values, tensor_name("Mul.m[1]"))
    made.add(np.ones(3, "<f4"), tensor_name("Mul.m[1]", slot=1))
    ingest_directly(made.root, store, sketches=True)
    return Moment.of(open_store(store))


def asked_of_sketches(moment: Moment, name: str) -> Asked:
    query = {"rank": "0", "step": "0", "name": name}
    return Asked(moment, Arguments.of(query, SCREEN.parameters), Links("", "run.zarr"))


def test_the_view_shows_them_with_their_commands(sketched: Moment) -> None:
    view = asked_of_sketches(sketched, NAME)
    page = render(SCREEN.template, title="", **frame(view.links, moment=None), **SCREEN.show(view))
    for words in ("Signs and binary exponents", "In other formats", "Channels that stand out", "outlier"):
        assert words in page
    assert "dump-ingest outliers" in page
