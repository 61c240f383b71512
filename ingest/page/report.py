"""One file with the incidents of a run, to attach to a ticket: no network, no other files, no script."""

from __future__ import annotations

import base64
import hashlib

from markupsafe import Markup

from ingest.page import rendering
from ingest.page.asking import Arguments, Asked, Links
from ingest.page.library import Moment
from ingest.page.views import incidents, matrix
from ingest.reader.dump_store import DumpStore


def report(store: DumpStore, *, incident: str = "") -> str:
    """Return a page with the incidents of a store and the matrix of its ranks and steps.

    Args:
        store: the store, which is read as it is now.
        incident: only the incident with this id; "" for all.

    Raises:
        UsageError: the store has no step, or no such incident.
        StoreError: it cannot be read.
    """
    moment = Moment.of(store)
    links = Links("", store.url.rstrip("/").rpartition("/")[2])
    given = {"id": incident} if incident else {}
    shown = incidents.show(Asked(moment, Arguments(given), links))
    overview = matrix.show(Asked(moment, Arguments({}), links)) if moment.numbers else None
    style = rendering.asset("page.css").decode()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return rendering.render(
        "report.html.j2",
        **shown,
        overview=overview,
        title=f"Incident {incident}" if incident else "Incidents",
        links=links,
        moment=moment,
        url=store.url,
        report={"style": Markup(style), "style_hash": digest},  # noqa: S704  (a file of this package)
    )
