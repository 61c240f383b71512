"""A page of a real run, for all tests that only look."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.page.moment import Moment
from ingest.reader.dump_store import open_store
from tests.page_server import RunningPage


@pytest.fixture(scope="session")
def page(nan_log: Path) -> Iterator[RunningPage]:
    """The page of the store of two ranks in one of which a NaN is born in step 2."""
    with RunningPage(nan_log) as running:
        yield running


@pytest.fixture(scope="session")
def moment(nan_log: Path) -> Moment:
    """The same store at one moment."""
    return Moment.of(open_store(nan_log))
