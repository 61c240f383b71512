"""What a layout need not say, and how problems and listings speak of themselves."""

from collections.abc import Sequence

from ingest.layouts.base import Description, Layout, Listing, Place, Problem, ReadSmall
from ingest.layouts.pattern import parse
from workers.model import SourceFile, StepKey


class Smallest(Layout):
    """As little as a layout needs."""

    name = "smallest"
    patterns = (parse("job!/{step}"),)
    systems = ()

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Return nothing."""
        return Description()


def test_layout_says_only_what_is_special_about_it() -> None:
    layout = Smallest()
    assert (layout.transient, layout.evidence, layout.near_miss, layout.configuration) == ((), None, None, "")
    assert layout.expected_steps(b"anything") == frozenset()


def test_problem_names_its_file() -> None:
    assert str(Problem("rank_0/a", "cannot be listed", "Try again.")) == "rank_0/a: cannot be listed"


def test_listing_has_the_bytes_of_its_files() -> None:
    files = (SourceFile("a", 5, 0), SourceFile("b", 7, 0))
    assert Listing(StepKey(0, 1), files, 0.0, later_begun=False).nbytes == 12
