"""A tensor of several ranks as a whole."""

import numpy as np
import pytest

from ingest.page.asking import Arguments, Asked, Links
from ingest.page.moment import Moment
from ingest.page.views.tensor import SCREEN
from ingest.reader.dump_store import open_store
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, write

WHOLE = np.random.default_rng(8).normal(size=(6, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def moment(tmp_path_factory: pytest.TempPathFactory) -> Moment:
    root = tmp_path_factory.mktemp("whole")
    write(root / "dump", [[{"cut": part, "same": WHOLE} for part in (WHOLE[:3], WHOLE[3:])]])
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    return Moment.of(open_store(root / "run.zarr"))


def asked(moment: Moment, name: str, **given: str) -> Asked:
    query = {"rank": "1", "step": "0", "name": f"Module..{name}.output.0", **given}
    return Asked(moment, Arguments.of(query, SCREEN.parameters), Links("", "run.zarr"))


def test_pieces_are_put_together_if_that_is_asked_for(moment: Moment) -> None:
    shown = SCREEN.show(asked(moment, "same"))
    assert shown["whole"].tensor is None
    assert "whole=1" in shown["whole"].url
    assert "unsharded" not in shown["lines"].shell
    shown = SCREEN.show(asked(moment, "same", whole="1"))
    whole = shown["whole"]
    assert "--step 0 --unsharded" in shown["lines"].shell
    assert "[0].unsharded('')" in shown["lines"].python
    assert (whole.tensor.shape, str(whole.tensor.placement)) == ((6, 4), "replicated")
    cut = SCREEN.show(asked(moment, "cut", placement="shard 0"))["whole"]
    assert (cut.image.height, cut.image.width, cut.problem) == (6, 4, "")
    assert "--placement 'shard 0'" in cut.line.shell


def test_an_open_layout_is_told(moment: Moment) -> None:
    whole = SCREEN.show(asked(moment, "cut", whole="1"))["whole"]
    assert whole.tensor is None
    assert "how the ranks hold it is not known; by the shapes of its pieces: " in whole.problem
    assert whole.line.shell.endswith("--placement 'shard 0'")  # the command that was asked would fail, too
