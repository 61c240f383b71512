"""Whether a generation has sketches."""

import pytest

from workers.store.sketches import block_digests, histograms
from workers.store.sketches.sketch_tables import KINDS, PATHS, has_all_sketches, has_sketches


@pytest.mark.parametrize(
    ("nodes", "has"),
    [
        ([], False),
        (["", "index", "statistics"], False),
        ([histograms.TABLE.path], True),
        (["", block_digests.TABLE.path], True),
        ([f"{histograms.TABLE.path}/c"], False),
    ],
)
def test_any_of_the_tables_is_a_sketch(nodes: list[str], *, has: bool) -> None:
    assert has_sketches(nodes) is has


def test_tables_of_sketches_do_not_share_a_place() -> None:
    assert len(PATHS) == sum(len(kind.arrays) for kind in KINDS)


def test_a_step_of_an_older_version_has_not_all_of_them() -> None:
    assert not has_all_sketches([histograms.TABLE.path])
    assert has_all_sketches(["marginal_axes"])
