"""Where incidents are on the page that `dump-ingest serve` shows."""

from __future__ import annotations

from urllib.parse import quote


def incident_link(page_url: str, store: str, incident: str) -> str:
    """Return the URL of an incident; "" without the URL of a page.

    Args:
        page_url: by what URL people reach the page; "" if there is none.
        store: the URL of the store, whose last part is the name of the run.
        incident: the id of the incident.
    """
    return f"{_of_run(page_url, store)}?id={incident}" if page_url else ""


def place_link(page_url: str, store: str, rank: int, step: int) -> str:
    """Return the URL of the incidents that were seen on a rank in a step; "" without the URL of a page."""
    return f"{_of_run(page_url, store)}?rank={rank}&step={step}" if page_url else ""


def _of_run(page_url: str, store: str) -> str:
    run = store.rstrip("/").rpartition("/")[2]
    return f"{page_url.rstrip('/')}/runs/{quote(run, safe='')}/incidents"
