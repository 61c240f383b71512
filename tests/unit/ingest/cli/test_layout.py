"""`dump-ingest layout`, and the options of `compare` and `show` for runs that are cut."""

from pathlib import Path

import numpy as np
import pytest

from ingest.cli.exits import EXIT_DIFFERENT
from tests.cli import Answer
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, Config, simulate, write


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`two`: two ranks of tensor parallelism with a missing reduction; `one`: the same net on one.

    `replicas`: two ranks of data parallelism, of which one gradient is not reduced.
    """
    root = tmp_path_factory.mktemp("stores")
    for name, config in (
        ("two", Config(2, 1, frozenset(["BUG missing reduction"]), 1)),
        ("one", Config(steps=1)),
        ("replicas", Config(1, 2, frozenset(["BUG a gradient is not reduced"]), 1)),
    ):
        write(root / "dumps" / name, simulate(config))
        ingest_directly(root / "dumps" / name, root / name, layout=LAYOUT)
    return root


def test_layout_names_what_looks_wrong(stores: Path, answer: Answer) -> None:
    done = answer("layout", stores / "replicas", code=EXIT_DIFFERENT)
    assert "missing reduction" in done.stdout
    plain = answer("layout", stores / "replicas", "--json", code=EXIT_DIFFERENT).json
    assert plain["findings"][0]["name"] == "Module..grad.param.layers.2.fc2.weight.output.0"
    assert plain["ranks"] == [0, 1]


def test_compare_across_layouts(stores: Path, tmp_path: Path, answer: Answer) -> None:
    page = tmp_path / "page.html"
    both = stores / "two", stores / "one"
    done = answer("compare", *both, "--html", page, code=EXIT_DIFFERENT)
    assert "blocks 0 (8+8+8 per rank)" in done.stdout
    assert "layers.1.norm2.output.0" in done.stderr
    assert "Layout" in page.read_text()
    assert "shape differs" in answer("compare", *both, "--rank-by-rank", code=EXIT_DIFFERENT).stdout


def test_show_puts_a_tensor_together(stores: Path, tmp_path: Path, answer: Answer) -> None:
    shown = "show", stores / "two", "Module..param.head.weight.output.0"
    saved = tmp_path / "x.npy"
    assert "19x16" in answer(*shown, "--placement", "shard 0", "--save", saved).stdout
    (whole,) = simulate(Config(steps=1))
    assert np.array_equal(np.load(saved), whole[0]["param.head.weight"])
    plain = answer(*shown, "--placement", "shard 0", "--at", "0,:2", "--json").json
    assert (plain["shape"], len(plain["values"])) == ([19, 16], 2)
    assert "[[" in answer(*shown, "--placement", "shard 0").stdout
    assert "how the ranks hold it is not known" in answer(*shown, "--unsharded", code=2).stderr
