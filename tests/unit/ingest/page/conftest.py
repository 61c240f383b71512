"""A page of a real run, for all tests that only look."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from ingest.page.asking import Arguments, Asked, Links
from ingest.page.library import Library, Moment, Run
from ingest.page.server import page_of
from ingest.page.views import SCREENS
from ingest.reader.dump_store import open_store
from tests.page_server import Got, RunningPage


@pytest.fixture(scope="session")
def page(nan_log: Path) -> Iterator[RunningPage]:
    """The page of the store of two ranks in one of which a NaN is born in step 2."""
    with RunningPage(nan_log) as running:
        yield running


@pytest.fixture(scope="session")
def moment(nan_log: Path) -> Moment:
    """The same store at one moment."""
    return Moment.of(open_store(nan_log))


def screen(moment: Moment, url: str, library: Library | None = None, run: str = "run.zarr") -> Got:
    """Return a screen as a server shows it: what is below `/runs/RUN/`."""
    name, _, query = url.partition("?")
    arguments = Arguments.of(dict(parse_qsl(query)), SCREENS[name].parameters)
    asked = Asked(moment, arguments, Links("", run), library)
    return Got(200, {}, page_of(SCREENS[name], asked, Run(run, moment.store.url)))


def words(got: Got) -> str:
    """Return what is read on a page."""
    main = got.text.partition("<main")[2].partition("</main>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main)).split())


def links(got: Got, to: str = "") -> list[str]:
    """Return where its links to a view lead, in order."""
    urls = map(html.unescape, re.findall(r'href="([^"]*)"', got.text.partition("<main")[2]))
    return [url for url in urls if f"/{to}" in url]
