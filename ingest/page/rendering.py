"""Templates, and how numbers, times and places are written. Names come from dumps, so all is escaped."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ingest.reader.choice import format_ranges
from ingest.units import human_bytes
from workers import __version__
from workers.arrays.statistics import COUNTS

UNKNOWN = "\u2013"


def number(value: float | None, digits: int = 6) -> str:
    """Return a number with this many significant digits at most; an en dash if it is not known."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "Inf" if value > 0 else "\u2212Inf"
    if value == int(value) and abs(value) < 1e6:
        return whole(value).replace("-", "\u2212")
    return f"{value:.{digits}g}".replace("-", "\u2212")


def exact(value: float | None) -> str:
    """Return an element of a tensor, which may be `NaN`; an en dash if it is not known."""
    return "NaN" if value is not None and math.isnan(value) else number(value)


def whole(value: float | None) -> str:
    """Return a count with thin spaces between thousands; an en dash if it is not known."""
    return UNKNOWN if value is None or math.isnan(value) else f"{int(value):,}".replace(",", "\u202f")


def statistic(value: float, name: str) -> str:
    """Return a statistic of this name: counts in full."""
    return whole(value) if name in COUNTS else number(value)


def share(low: float, high: float) -> str:
    """Return a share of all that is known to lie between two numbers: `0`, `1.2 %`, `0 to 3 %`."""
    percents = list(dict.fromkeys(f"{100 * value:.3g}" for value in (low, high)))
    return "0" if percents == ["0"] else f"{' to '.join(percents)} %"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 tensor`, `2 tensors`."""
    return f"{whole(count)} {noun}{'s' * (count != 1)}"


def sentence(words: str) -> str:
    """Return words with a capital letter, unless the first is a name such as `l2_norm`."""
    return words[:1].upper() + words[1:] if words.partition(" ")[0].isalpha() else words


def shape(lengths: Sequence[int]) -> str:
    """Return a shape such as `2 x 3`, with a sign for times; `scalar` for none."""
    return " \u00d7 ".join(map(str, lengths)) or "scalar"


def short(name: str, limit: int = 56) -> str:
    """Return a name without its middle if it is long; the last part says more than the first."""
    return name if len(name) <= limit else f"{name[: limit // 3]}…{name[-(limit - limit // 3 - 1) :]}"


def clock(seconds: float, form: str = "%H:%M:%S UTC") -> str:
    """Return a time of day, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def time_of_commit(committed_at: str) -> str:
    """Return the time of a commit as people write it."""
    return f"{committed_at[:19].replace('T', ' ')} UTC"


def command(*words: object) -> str:
    """Return a command line that can be pasted into a shell."""
    return shlex.join(["dump-ingest", *map(str, words)])


def prose(text: object) -> Markup:
    """Return a message with what it has in backquotes as code, as in hints of the commands."""
    escaped = str(escape(str(text)))
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escaped))  # noqa: S704  (it is escaped)


@cache
def environment() -> Environment:
    """Return the templates with the filters that they use, and what the frame of a page shows by default."""
    made = Environment(
        loader=PackageLoader("ingest.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = (number, whole, statistic, exact, shape, short, clock, counted, share, sentence, prose)
    made.filters |= {each.__name__: each for each in written}
    made.filters |= {"moment": time_of_commit, "ranges": format_ranges, "size": human_bytes}
    made.globals |= {"version": __version__, "report": None, "moment": None, "lines": None}
    made.globals |= {"away": "", "url": "", "tab": "", "comes_back": False, "has_list": False}
    return made


def alone() -> dict[str, str]:
    """Return what makes a page one file: the stylesheet, and the hash by which a browser takes no other."""
    style = asset("page.css").decode()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return {"style": Markup(style), "style_hash": digest}  # noqa: S704  (a file of this package)


def render(template: str, **context: Any) -> str:
    """Return a page."""
    return environment().get_template(template).render(**context)


def asset(name: str) -> bytes:
    """Return a file that comes with the page."""
    return files("ingest.page").joinpath("static", name).read_bytes()
