"""Which directories go with the last file of a step."""

import pytest

from ingest.dump_retention.removal import step_directories
from ingest.layouts.detect import find_dump
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump


def test_a_place_that_is_the_step_itself_has_none_above_it(made: MadeDump) -> None:
    made.add(b"x", step=4)
    (listing,) = find_dump(made.root).scan({}).listings
    assert list(step_directories(listing.places)) == []


@pytest.mark.parametrize("name", ["msprobe-26.2.0-pytorch-cpu"])
def test_a_step_above_its_ranks_goes_with_them(name: str, dumps: DumpLibrary) -> None:
    """`step0/rank1`: the directory of the step is empty when all of its ranks are."""
    dump = next(path for path in sorted(dumps[name].iterdir()) if path.is_dir())
    tree = find_dump(dump)
    listing = next(step for step in tree.scan({}).listings if step.key.step is not None)
    above = set(step_directories(listing.places))
    assert above
    assert all(directory.rpartition("/")[2].startswith("step") for directory in above)
    assert all((tree.root / directory).is_dir() for directory in above)
