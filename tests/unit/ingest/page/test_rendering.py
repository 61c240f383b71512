"""Words and templates."""

from __future__ import annotations

import pytest

from ingest.page import rendering as words
from ingest.page.rendering import asset, environment
from workers import __version__


@pytest.mark.parametrize("length", [1, 56, 57, 400])
def test_a_long_name_keeps_both_ends(length: int) -> None:
    name = "".join(chr(ord("a") + place % 26) for place in range(length))
    short = words.short(name)
    assert len(short) == min(length, 56)
    begin, _, end = short.partition("…")
    assert name.startswith(begin)
    assert name.endswith(end)


def test_names_of_tensors_are_escaped() -> None:
    template = environment().from_string('<a title="{{ name }}">{{ name | short }}</a> {{ version }}')
    assert template.render(name='"><script>') == (
        f'<a title="&#34;&gt;&lt;script&gt;">&#34;&gt;&lt;script&gt;</a> {__version__}'
    )


def test_files_of_the_page_are_those_that_it_comes_with() -> None:
    assert asset("page.js")
    with pytest.raises(FileNotFoundError):
        asset("missing.js")
