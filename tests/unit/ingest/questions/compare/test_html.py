"""The answer as a page."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare.html import to_html
from ingest.questions.compare.run import compare
from ingest.reader.text import MAX_NBYTES
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.two_ranks import TIME


@pytest.fixture
def hostile(made: MadeDump, store: Path) -> Callable[[], str]:
    """A store of two ranks whose only operator has a name that a page would execute."""

    def build() -> str:
        name = tensor_name("Add.<script>alert(1)<!--&quot;'\"--op0", time=TIME)
        for rank in (0, 1):
            made.add(np.array([float(rank + 1)]), name, rank=rank)
        ingest_directly(made.root, store)
        return str(store)

    return build


def test_names_are_escaped_on_the_page(hostile: Callable[[], str]) -> None:
    store = hostile()
    page = to_html(compare(f"{store}@0", f"{store}@1"))
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") == 2
    assert page.count("<script>") == 1


def test_a_page_needs_nothing_else_and_begins_with_the_first_difference(nan_log: str) -> None:
    page = to_html(compare(f"{nan_log}@0,2", f"{nan_log}@1,2"))
    assert "http" not in page.replace("http-equiv", "")
    assert page.index("First difference") < page.index("<table")
    assert page.count('<td class="bad">different</td>') == 113
    equal = to_html(compare(nan_log, nan_log))
    assert "First difference" not in equal


def test_a_notebook_shows_the_worst_in_small(hostile: Callable[[], str]) -> None:
    store = hostile()
    shown = compare(f"{store}@0", f"{store}@1")._repr_html_()
    assert "<script" not in shown
    assert "1 different" in shown
    assert len(shown.encode()) <= MAX_NBYTES
