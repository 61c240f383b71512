"""What the tensor view tells from sketches."""

from pathlib import Path

import numpy as np
import pytest

from ingest.page.arguments import Arguments
from ingest.page.links import Links
from ingest.page.moment import Moment
from ingest.page.rendering import render
from ingest.page.screen import Asked
from ingest.page.views.sketches import ShownSketches, sketches_of
from ingest.page.views.tensor import SCREEN
from ingest.page.web.handlers import frame
from ingest.reader.dump_store import open_store
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly

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


def asked(moment: Moment, name: str) -> Asked:
    query = {"rank": "0", "step": "0", "name": name}
    return Asked(moment, Arguments.of(query, SCREEN.parameters), Links("", "run.zarr"))


def test_exponents_losses_and_channels_come_from_sketches(sketched: Moment) -> None:
    (tensor,) = sketched.store.tensors("*output.0")
    shown = sketches_of(asked(sketched, NAME), tensor)
    assert shown.exponents is not None
    by_format = {loss.format: loss for loss in shown.losses}
    assert by_format["float16"].overflow.low > 0
    assert by_format["bfloat16"].overflow.high == 0
    assert [(odd.kind, shown.positions(odd)) for odd in shown.odd] == [("outlier", "100")]
    assert [line.shell.split()[1] for line in shown.lines] == ["precision", "outliers"]


def test_the_view_shows_them_with_their_commands(sketched: Moment) -> None:
    view = asked(sketched, NAME)
    page = render(SCREEN.template, title="", **frame(view.links, moment=None), **SCREEN.show(view))
    for words in ("Signs and binary exponents", "In other formats", "Channels that stand out", "outlier"):
        assert words in page
    assert "dump-ingest outliers" in page


def test_a_small_tensor_has_no_channels(sketched: Moment) -> None:
    (tensor,) = sketched.store.tensors("*output.1")
    shown = sketches_of(asked(sketched, NAME), tensor)
    assert (shown.has_marginals, shown.odd) == (False, ())
    assert shown.losses


def test_without_sketches_there_is_nothing(moment: Moment) -> None:
    tensor = moment.store.tensors("Log.*output.0", rank=1, step=2)[0]
    assert sketches_of(asked(moment, tensor.name), tensor) == ShownSketches()
