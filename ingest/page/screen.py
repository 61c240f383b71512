"""What every screen has: a moment of the run, what was asked, URLs, and lines with the same answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingest.page.arguments import Arguments, UrlParameter
from ingest.page.library import Library
from ingest.page.links import Links
from ingest.page.moment import Moment
from ingest.page.watchers import Watched
from ingest.page.words import command
from workers.errors import UsageError


@dataclass(frozen=True, slots=True)
class Asked:
    """One view that somebody asks for."""

    moment: Moment
    arguments: Arguments
    links: Links
    library: Library | None = None
    """The other runs; None in a report."""
    watched: Watched | None = None
    """The watchers of the run; None if the page knows of none, or the view does not show them."""

    def runs(self) -> list[str]:
        """Return the names of all runs."""
        return self.library.names() if self.library is not None else [self.links.run]

    def moment_of(self, run: str) -> Moment:
        """Return another run as it is now.

        Raises:
            UsageError: the run does not exist.
            StoreError: it cannot be read.
        """
        if self.library is None:
            raise UsageError(f"no run {run!r}")
        return self.library.run(run).moment()

    def storage_options(self) -> dict[str, Any]:
        """Return the options with which the stores are opened."""
        return dict(self.library.options) if self.library is not None else {}

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self.moment.store.url


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """A command line, and the Python expression on `store`, that give the same answer."""

    shell: str
    python: str

    @classmethod
    def of(cls, words: tuple[object, ...], python: str) -> AnswerLine:
        """Return a command, of its words without `dump-ingest`, and an expression."""
        return cls(command(*words), python)


@dataclass(frozen=True, slots=True)
class Lines:
    """The command lines and the Python that give the same answers as a view."""

    shell: str
    python: str


@dataclass(frozen=True, slots=True)
class Screen:
    """A kind of view: its name in the URL, what it may be asked, and how it is made."""

    name: str
    title: str
    template: str
    parameters: tuple[UrlParameter, ...]
    show: Callable[[Asked], dict[str, Any]]
    """Returns what the template shows; `lines` among it."""
    is_slow: Callable[[Arguments], bool] = lambda _: False
    """Whether it reads the indexes of many steps, which takes seconds: then others do not wait for it."""
    shows_watchers: bool = False
    """Whether it has `watched`, and follows it."""


def lines(asked: Asked, *same: AnswerLine) -> Lines:
    """Return the lines for a store, one for each answer of a view."""
    opening = f"import ingest\nstore = ingest.open_store({asked.url!r})\n"
    return Lines("\n".join(line.shell for line in same), opening + "\n".join(line.python for line in same))
