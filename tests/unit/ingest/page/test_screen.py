"""What every view has."""

import shlex

import pytest

from ingest.page.arguments import Arguments
from ingest.page.links import Links
from ingest.page.moment import Moment
from ingest.page.screen import AnswerLine, Asked, lines
from workers.errors import UsageError


def test_a_report_has_one_run_and_no_other(moment: Moment) -> None:
    asked = Asked(moment, Arguments({}), Links("", "run.zarr"))
    assert (asked.runs(), asked.storage_options()) == (["run.zarr"], {})
    with pytest.raises(UsageError, match=r"no run 'other\.zarr'"):
        asked.moment_of("other.zarr")


def test_lines_can_be_pasted(moment: Moment) -> None:
    asked = Asked(moment, Arguments({}), Links("", "run.zarr"))
    shown = lines(asked, AnswerLine.of(("show", asked.url, "Default/a b'c"), "store.ranks"))
    assert shlex.split(shown.shell) == ["dump-ingest", "show", asked.url, "Default/a b'c"]
    names: dict[str, object] = {}
    opening, expression = shown.python.rsplit("\n", 1)
    exec(opening, names)  # noqa: S102  (as a reader of the page does)
    assert eval(expression, names) == moment.store.ranks  # noqa: S307
