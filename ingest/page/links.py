"""URLs of the page, each of which holds the whole state of a view."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode


@dataclass(frozen=True, slots=True)
class Links:
    """The URLs of one run below the base path of the page."""

    base: str
    """"" or a path such as `/dumps`."""
    run: str = ""

    def home(self) -> str:
        """Return the URL of the list of runs."""
        return f"{self.base}/"

    def asset(self, name: str) -> str:
        """Return the URL of a file that comes with the page."""
        return f"{self.base}/static/{name}"

    def view(self, view: str, /, **state: object) -> str:
        """Return the URL of a view in this state; what is None or empty is left out."""
        return f"{self.base}/runs/{quote(self.run, safe='')}/{view}{_query(state)}"

    def api(self, question: str, /, **state: object) -> str:
        """Return the URL of an answer as JSON."""
        return f"{self.base}/api/v1/runs/{quote(self.run, safe='')}/{question}{_query(state)}"

    def of_run(self, run: str) -> Links:
        """Return the URLs of another run."""
        return Links(self.base, run)


def _query(state: dict[str, object]) -> str:
    given = {name: value for name, value in state.items() if value is not None and value != ""}
    return f"?{urlencode(given)}" if given else ""
