"""Templates escape what dumps hold, and refuse what a view forgot."""

from importlib.resources import files

import pytest
from jinja2 import UndefinedError

from ingest.page.rendering import asset, environment, prose
from workers import __version__


def test_names_of_tensors_are_escaped() -> None:
    template = environment().from_string('<a title="{{ name }}">{{ name | short }}</a> {{ version }}')
    assert template.render(name='"><script>') == (
        f'<a title="&#34;&gt;&lt;script&gt;">&#34;&gt;&lt;script&gt;</a> {__version__}'
    )


def test_backquotes_of_a_message_are_code_and_names_in_it_are_escaped() -> None:
    assert prose("`verify <a>` names all; it's one ` here") == (
        "<code>verify &lt;a&gt;</code> names all; it&#39;s one ` here"
    )


def test_what_a_view_does_not_give_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'answer' is undefined"):
        environment().from_string("{{ answer }}").render()


@pytest.mark.parametrize(
    "name", sorted(path.name for path in files("ingest.page").joinpath("templates").iterdir())
)
def test_every_template_is_read_with_the_filters_that_there_are(name: str) -> None:
    assert environment().get_template(name).name == name


def test_files_of_the_page_are_those_that_it_comes_with() -> None:
    assert asset("page.js")
    with pytest.raises(FileNotFoundError):
        asset("missing.js")
