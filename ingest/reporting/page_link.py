"""Where an incident is on the page that `dump-ingest serve` shows."""

from __future__ import annotations

from urllib.parse import quote


def incident_link(page_url: str, store: str, incident: str) -> str:
    """Return the URL of an incident; "" without the URL of a page.

    Args:
        page_url: by what URL people reach the page; "" if there is none.
        store: the URL of the store, whose last part is the name of the run.
        incident: the id of the incident.
    """
    if not page_url:
        return ""
    run = store.rstrip("/").rpartition("/")[2]
    return f"{page_url.rstrip('/')}/runs/{quote(run, safe='')}/incidents?id={incident}"
