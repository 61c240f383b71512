"""`dump-ingest divergence --links` as it is typed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import Answer
from tests.damages import only
from tests.flips import flip
from tests.pipeline import ingest_directly


@pytest.fixture
def flipped(dump_copy: Callable[[str], Path], store: Path) -> Path:
    """A store of one rank with a bit flipped in the output of one operator, which its readers do not see."""
    dump = dump_copy("lenet-1rank") / "dump"
    flip(dump, "MatMul.*fc1-Dense_MatMul-op0.*.output.0.*", rank=0, step=1, element=5, bit=3)
    ingest_directly(dump, store)
    return store


def test_a_broken_link_is_printed_for_a_single_rank(flipped: Path, answer: Answer) -> None:
    lines = answer("divergence", flipped, "--links", code=5).stdout.splitlines()
    assert lines[0].startswith("rank 0, step 1: MatMul.")
    assert lines[0].endswith("fc1-Dense_MatMul-op0.output.0 was read with other bytes than it holds")
    assert lines[1].startswith("  reader   BiasAdd.")
    assert lines[2].startswith("  differs  1 element, 1 bit; first [0, 5]: ")
    assert lines[2].endswith(" (bit 3)")
    assert lines[3] == "  so       no other reader has its bytes: the output, its dump or the input is wrong"


def test_steps_whose_links_could_not_be_compared_are_named(
    nan_store: Path, tmp_path: Path, answer: Answer
) -> None:
    damaged = tmp_path / "run.zarr"
    shutil.copytree(nan_store, damaged)
    answer("consolidate", damaged)  # `divergence` itself asks the cubes
    shutil.rmtree(only(damaged, "rank_1/step_2/*/index"))
    done = answer("divergence", damaged, "--links", code=3)
    assert "left out: rank 1 step 2: damaged: index/" in done.stderr


def test_one_rank_of_several_will_do(nan_store: Path, answer: Answer) -> None:
    done = answer("divergence", nan_store, "--links", "--rank", 1, "--step", 2)
    assert done.stdout.startswith("links hold: ")
    hint = "`divergence --links` looks within one"
    assert hint in answer("divergence", nan_store, "--rank", 1, code=2).stderr
