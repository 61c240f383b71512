"""Templates. Names come from dumps and may hold anything, so everything is escaped."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from ingest.page import words
from workers import __version__


@cache
def environment() -> Environment:
    """Return the templates with the filters that they use."""
    made = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=words.number,
        whole=words.whole,
        statistic=words.statistic,
        exact=words.exact,
        shape=words.shape,
        short=words.short,
        clock=words.clock,
        date_and_time=words.date_and_time,
        moment=words.moment,
        ranges=words.format_ranges,
        size=words.human_bytes,
        counted=words.counted,
        share=words.share,
        sentence=words.sentence,
        prose=prose,
    )
    made.globals["version"] = __version__
    return made


def prose(text: object) -> Markup:
    """Return a message with what it has in backquotes as code, as in hints of the commands."""
    escaped = str(escape(str(text)))
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escaped))  # noqa: S704  (it is escaped)


def render(template: str, **context: Any) -> str:
    """Return a page."""
    return environment().get_template(template).render(**context)


def asset(name: str) -> bytes:
    """Return a file that comes with the page."""
    return files("ingest.page").joinpath("static", name).read_bytes()


def _template(name: str) -> str:
    return files("ingest.page").joinpath("templates", name).read_text("utf-8")
